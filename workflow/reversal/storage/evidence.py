"""One memory or two: what rewriting, gradients, symmetry and edits say, on one scale.

Each measures how much a fact's forward and reverse questions have in common, and each has a ceiling: what the same
measure is where they do have one memory, or ask the same thing in other words. The share that the one is of the other
is 0 for two memories and 1 for one.
"""

import numpy as np
import pandas as pd

from ..common import contrasts
from ..common.intervals import Interval
from .vocabulary import BASE, CONCEPTS, HEADLINE, LEARNT, PEAK, STATES, mainly_trained

TWO, ONE = 0.1, 0.5  # shares: at most so much is two memories, at least so much one
# What decides is what a change of the one direction does to the other. Two memories may look alike; and an edit, which
# is keyed to the subject, may miss a question that lacks it.
DECIDING = ("rewriting",)
MEASURED = ["value", "ci_low", "ci_high", "ceiling", "ceiling_low"]
COLUMNS = ["model", "seed", "kind", "what", *MEASURED]
# What each measure is about, in words.
ABOUT = {
    "rewriting": {"p2d": "where a description is taught", "d2p": "where a name is taught"},
    "gradients": {"p2d": "where descriptions are asked for", "d2p": "where names are asked for"},
    "symmetry": {
        "name": "for names by MLP output and value",
        "description": "for descriptions by MLP output and value",
        "state of name": "for names by hidden states of the layer in which values are sought",
        "state of description": "for descriptions by hidden states of the layer in which values are sought",
        "last state of name": "for names by hidden states of the last layer read",
        "last state of description": "for descriptions by hidden states of the last layer read",
    },
    "edits": {"forward": "on average"},
}


def summary(rewriting, gradients, symmetry, edits):
    """A row for each model, seed and measure: model, seed, kind, what, value, ci_low, ci_high, ceiling, share, ….

    rewriting  the new answer's change in the reverse question, as a share of what was taught, beyond that of others;
               the ceiling is the same where the reverse is derived from forward answers (`what`: the direction taught)
    gradients  cosine of a fact's forward and reverse gradients, beyond that of other facts; the ceiling is that of the
               same question in other words
    symmetry   HEADLINE of the named tests, and of states, where MLPs matter most; of states in the last layer, too,
               where a network that has recalled an answer may hold it as one that reads it; the ceiling is from halves
    edits      change of the edited person's lead in the reverse question over that of the edited answer's lead; the
               ceiling is the same of the edited question in other words, unknown where most edits do not take

    share, share_low and share_high are as in `share_of`. `verdict`: two, one, or partly shared, between these; unclear
    where the interval allows several, or goes far below 0; blind where the ceiling itself is not clearly above 0, by
    ceiling_low, the end of its interval (for symmetry, TWO less than it), so that nothing could have been seen.
    """
    parts = [_rewriting(rewriting), _gradients(gradients), _symmetry(symmetry), _edits(edits)]
    rows = [row for part in parts for row in part]
    table = pd.DataFrame(rows, columns=COLUMNS)
    shares = [share_of(*row) for row in table[MEASURED].to_numpy(float)]
    table[["share", "share_low", "share_high"]] = np.reshape(shares, (-1, 3))
    return table.assign(
        verdict=[verdict(*row) for row in zip(table.share_low, table.share_high, table.ceiling_low, strict=True)]
    )


def share_of(value, low, high, ceiling, ceiling_low):
    """What a measure is of its ceiling: an `Interval`, to which the ceiling's own uncertainty adds."""
    if not ceiling > 0:
        return Interval(*[float("nan")] * 3)
    share = value / ceiling
    unsure = share * (ceiling - ceiling_low) / ceiling
    return Interval(
        share,
        share - np.hypot((value - low) / ceiling, unsure),
        share + np.hypot((high - value) / ceiling, unsure),
    )


def verdict(low, high, ceiling_low):
    """What a share says, by the ends of its interval."""
    if not ceiling_low > 0:
        return "blind"
    if np.isnan(low) or np.isnan(high):
        return "unclear"
    if high < TWO:  # but far below 0, something else happens than nothing
        return "two" if low > -ONE else "unclear"
    return "one" if low > ONE else "partly" if low > TWO else "unclear"


def pooled_share(rows):
    """What a measure, with MEASURED of some networks, is of its ceiling: an `Interval`, and what that says.

    Over networks the measure and the ceiling are averaged, then set against each other.
    """
    rows = rows[MEASURED].dropna()
    if not len(rows):
        return Interval(*[float("nan")] * 3), "blind"
    value, low, high, ceiling, ceiling_low = rows.to_numpy(float).T
    whole = contrasts.pooled(ceiling, ceiling_low, 2 * ceiling - ceiling_low)
    found = share_of(*contrasts.pooled(value, low, high), whole.estimate, whole.low)
    return found, verdict(found.low, found.high, whole.low)


def _rewriting(table):
    table = table[(table.lesson == "rewrite") & (table.weights == mainly_trained(table.weights))]
    table = table[(table.steps == LEARNT) & (table.about == "difference") & (table.stage != BASE)]
    table = table[table.answer == "new"]
    columns = ["transfer", "transfer_low", "transfer_high"]
    return _by_direction(table, "rewriting", columns, asked="asked", found="other", ceiling="inverted")


def _gradients(table):
    table = table[(table.stage != BASE) & (table.part == "all")]
    columns = ["value", "ci_low", "ci_high"]
    return _by_direction(table, "gradients", columns, asked="against", found="reverse", ceiling="forward")


def _by_direction(table, kind, columns, *, asked, found, ceiling):
    """Of the first group a row for each direction: of the column `asked`, what is `found` and what is its `ceiling`."""
    for (model, seed), run in table.groupby(["model", "seed"], sort=False):
        run = run[run.group == run.group.iloc[0]]
        for direction, rows in run.groupby("rewritten", sort=False):
            own = rows.set_index(asked)[columns]
            if {found, ceiling} <= set(own.index):
                yield model, seed, kind, direction, *own.loc[found], *own.loc[ceiling][:2]


def _symmetry(table):
    table = table[(table.stage != BASE) & (table.statistic == HEADLINE)]
    states = {f"state of {what}": pair for what, pair in STATES.items()}
    last = {f"last {what}": pair for what, pair in states.items()}
    for (model, seed), run in table.groupby(["model", "seed"], sort=False):
        for some, compared in ((leading(run), CONCEPTS | states), (deepest(run), last)):
            own = some.set_index("comparison")
            for what, pair in compared.items():
                if pair in own.index:
                    found = own.loc[pair, ["value", "ci_low", "ci_high", "ceiling"]]
                    yield model, seed, "symmetry", what, *found, found.ceiling - TWO


def leading(run):
    """Of one model's rows of symmetry those where MLPs matter most; without such, those of the lowest layer's tests."""
    labels = run.layer.astype(str)
    if (labels == PEAK).any():
        return run[labels == PEAK]
    tested = labels[run.comparison.isin(CONCEPTS.values())]
    return run[labels == min(tested if len(tested) else labels, key=int)]


def deepest(run):
    """Of one model's rows of symmetry those of the last layer."""
    layers = pd.to_numeric(run.layer, errors="coerce")  # PEAK is none
    return run[layers == layers.max()]


def _edits(table):
    table = table[table.peak.astype(bool)]
    taken = table[table.fact.isna() & (table.statistic == "preferred") & (table.measure == "efficacy")]
    taken = taken[taken.when == "after"].set_index(["model", "seed", "group"]).value
    table = table[table.fact.notna() & (table.statistic == "lead")]
    for (model, seed), run in table.groupby(["model", "seed"], sort=False):
        group = run.group.iloc[0]
        run = run[run.group == group]
        wide = run.pivot_table(index="fact", columns="measure", values="value")
        if {"efficacy", "paraphrase", "reverse_new"} <= set(wide):
            found, ceiling = (
                contrasts.ratio(wide[measure].to_numpy(), wide.efficacy.to_numpy())
                for measure in ("reverse_new", "paraphrase")
            )
            known = (ceiling.estimate, ceiling.low) if taken[model, seed, group] >= 0.5 else (np.nan, np.nan)
            yield model, seed, "edits", "forward", *found, *known
