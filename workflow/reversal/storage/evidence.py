"""Shared or separate storage: fine-tuned edits, gradients, similarity and rank-one edits on one scale.

Each method measures what a fact's forward and reverse prompts have in common, and each has a ceiling: the same measure
where storage is shared by construction, or for the same prompt in other words. The measure as a share of its ceiling is
0 for separate storage and 1 for shared storage. Fine-tuned edits decide, because they measure what a change of one
direction does to the other. Separate storage may look similar, and a rank-one edit, which is keyed to the subject, may
not act on a prompt without it.
"""

import numpy as np
import pandas as pd

from ..common import contrasts
from ..common.intervals import Interval
from .vocabulary import (
    BASE,
    CONVERGED,
    PEAK,
    PRIMARY_COMPARISONS,
    PRIMARY_STATISTIC,
    STATE_COMPARISONS,
    main_weights,
)

SEPARATE, SHARED = 0.1, 0.5  # shares: storage is separate below the first, shared above the second
MEASURED = ["value", "ci_low", "ci_high", "ceiling", "ceiling_low"]
COLUMNS = ["model", "seed", "kind", "measure", *MEASURED]
UNKNOWN = Interval(*[float("nan")] * 3)


def summarize_evidence(finetuned, gradients, symmetry, rank_one):
    """A row for each model, seed and measure: model, seed, kind, measure, value, ci_low, ci_high, ceiling, share, ….

    finetuned  change of the new answer in the reverse prompt, as a share of the edit's own change, minus that of other
               facts; the ceiling is the same for the reverse derived from forward answers (`measure`: what is edited)
    gradients  cosine of a fact's forward and reverse gradients, minus that of other facts; the ceiling is the same for
               paraphrases of one prompt
    symmetry   PRIMARY_STATISTIC of the primary comparisons and of states, where MLPs have the largest effect; of states
               also in the last layer, where a recalled answer may look like one that is read; the ceiling compares two
               halves of the templates
    rank_one   change of the edited subject's lead in the reverse prompt over that of the new object's lead; the ceiling
               is the same for paraphrases of the edited prompt, and unknown where most edits have no effect

    share, share_low and share_high are from `compute_share`, and `verdict` from `judge`. ceiling_low is the lower end
    of the ceiling's interval (for symmetry, the ceiling minus SEPARATE).
    """
    rows = [*_read_finetuned(finetuned), *_read_gradients(gradients), *_read_symmetry(symmetry)]
    table = pd.DataFrame([*rows, *_read_rank_one(rank_one)], columns=COLUMNS)
    shares = [compute_share(*row) for row in table[MEASURED].to_numpy(float)]
    table[["share", "share_low", "share_high"]] = np.reshape(shares, (-1, 3))
    ends = zip(table.share_low, table.share_high, table.ceiling_low, strict=True)
    return table.assign(verdict=[judge(*row) for row in ends])


def compute_share(value, low, high, ceiling, ceiling_low):
    """A measure as a share of its ceiling: an `Interval` that includes the uncertainty of the ceiling."""
    if not ceiling > 0:
        return UNKNOWN
    share = value / ceiling
    from_ceiling = share * (ceiling - ceiling_low) / ceiling
    return Interval(
        share,
        share - np.hypot((value - low) / ceiling, from_ceiling),
        share + np.hypot((high - value) / ceiling, from_ceiling),
    )


def judge(low, high, ceiling_low):
    """The verdict on a share, from its interval: separate, shared, or partial, between the two.

    It is inconclusive where the interval allows several of these, or extends far below 0; underpowered where the
    ceiling's own interval includes 0, so that shared storage could not have been detected.
    """
    if not ceiling_low > 0:
        return "underpowered"
    if np.isnan(low) or np.isnan(high):
        return "inconclusive"
    if high < SEPARATE:  # far below 0 the edit has an effect, of another kind than transfer
        return "separate" if low > -SHARED else "inconclusive"
    return "shared" if low > SHARED else "partial" if low > SEPARATE else "inconclusive"


def pool_share(rows):
    """A measure of several networks, with columns MEASURED, as a share of its ceiling: an `Interval` and a verdict.

    The measure and the ceiling are each averaged over networks before the ratio is taken.
    """
    rows = rows[MEASURED].dropna()
    if not len(rows):
        return UNKNOWN, "underpowered"
    value, low, high, ceiling, ceiling_low = rows.to_numpy(float).T
    mean_ceiling = contrasts.pool_seeds(ceiling, ceiling_low, 2 * ceiling - ceiling_low)
    share = compute_share(*contrasts.pool_seeds(value, low, high), mean_ceiling.estimate, mean_ceiling.low)
    return share, judge(share.low, share.high, mean_ceiling.low)


def _read_finetuned(table):
    table = table[(table.kind == "replace") & (table.weights == main_weights(table.weights))]
    table = table[(table.steps == CONVERGED) & (table.about == "difference") & (table.stage != BASE)]
    table = table[table.answer == "new"]
    columns = ["transfer", "transfer_low", "transfer_high"]
    return _read_directions(table, "finetuned", columns, key="question", measured="reverse", ceiling="bayes_inverse")


def _read_gradients(table):
    table = table[(table.stage != BASE) & (table.part == "all")]
    columns = ["value", "ci_low", "ci_high"]
    return _read_directions(table, "gradients", columns, key="against", measured="reverse", ceiling="forward")


def _read_directions(table, kind, columns, *, key, measured, ceiling):
    """Yield a row for each direction of the first group: from where `key` is `measured`, and where it is `ceiling`."""
    for (model, seed), run in table.groupby(["model", "seed"], sort=False):
        run = run[run.group == run.group.iloc[0]]
        for direction, rows in run.groupby("edited", sort=False):
            values = rows.set_index(key)[columns]
            if {measured, ceiling} <= set(values.index):
                yield model, seed, kind, direction, *values.loc[measured], *values.loc[ceiling][:2]


def _read_symmetry(table):
    table = table[(table.stage != BASE) & (table.statistic == PRIMARY_STATISTIC)]
    states = {f"state of {concept}": pair for concept, pair in STATE_COMPARISONS.items()}
    last = {f"last {measure}": pair for measure, pair in states.items()}
    for (model, seed), run in table.groupby(["model", "seed"], sort=False):
        for rows, compared in ((select_main_layer(run), PRIMARY_COMPARISONS | states), (select_last_layer(run), last)):
            by_comparison = rows.set_index("comparison")
            for measure, pair in compared.items():
                if pair in by_comparison.index:
                    values = by_comparison.loc[pair, ["value", "ci_low", "ci_high", "ceiling"]]
                    yield model, seed, "symmetry", measure, *values, values.ceiling - SEPARATE


def select_main_layer(run):
    """One model's rows of symmetry at PEAK; without a peak, those of the lowest layer with primary comparisons."""
    labels = run.layer.astype(str)
    if (labels == PEAK).any():
        return run[labels == PEAK]
    tested = labels[run.comparison.isin(PRIMARY_COMPARISONS.values())]
    return run[labels == min(tested if len(tested) else labels, key=int)]


def select_last_layer(run):
    """One model's rows of symmetry in the last layer."""
    layers = pd.to_numeric(run.layer, errors="coerce")  # NaN for PEAK
    return run[layers == layers.max()]


def _read_rank_one(table):
    table = table[table.peak.astype(bool)]
    success = table[table.fact.isna() & (table.statistic == "preferred") & (table.measure == "efficacy")]
    success = success[success.when == "after"].set_index(["model", "seed", "group"]).value
    table = table[table.fact.notna() & (table.statistic == "lead")]
    for (model, seed), run in table.groupby(["model", "seed"], sort=False):
        group = run.group.iloc[0]
        run = run[run.group == group]
        leads = run.pivot_table(index="fact", columns="measure", values="value")
        if {"efficacy", "paraphrase", "reverse_new"} <= set(leads):
            share, ceiling = (
                contrasts.ratio(leads[measure].to_numpy(), leads.efficacy.to_numpy())
                for measure in ("reverse_new", "paraphrase")
            )
            is_known = success[model, seed, group] >= 0.5
            yield model, seed, "rank_one", "forward", *share, *(ceiling[:2] if is_known else (np.nan, np.nan))
