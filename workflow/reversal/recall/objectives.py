"""Recall and likelihood beside what each model was taught and how: the table of objectives. No network is needed."""

import pandas as pd

from ..common import contrasts
from ..data import facts
from ..data.facts import SPARED_GROUPS, SPARED_SPLITS, SPLITS

ALIKE = {  # the split of people who are not spared that asks the same
    name: next(
        like for like, other in SPLITS.items() if (other.group, other.asks) == (SPARED_GROUPS[split.group], split.asks)
    )
    for name, split in SPARED_SPLITS.items()
}


def table(completions, comparisons, histories, taught, apart):
    """Recall per model, split and number of steps, over seeds; those whose subject was spared apart from the others.

    `completions`, `comparisons` and `histories` have the columns model and seed; `taught` {model: what it was taught
    and how, the first columns}; `apart` the ids of the spared people's facts. Intervals are over facts and templates;
    `seed_low` and `seed_high` are the least and the most of a seed. `log_likelihood` is that of the right answer, in
    nats, `likelier` how much more it is than a wrong one's. Of tokens that changed after they were shown, `better`
    became right and `worse` wrong.
    """
    completions, comparisons = (_told(rows, taught, apart) for rows in (completions, comparisons))
    costs = histories.groupby(["model", "seed"])[["rows", "flops"]].sum().groupby("model").mean()
    records = []
    for (model, split, spared, steps), rows in completions.groupby(
        ["model", "split", "spared", "steps"], dropna=False, sort=False
    ):
        likely = comparisons[
            (comparisons.model == model) & (comparisons.split == split) & (comparisons.spared == spared)
        ]
        share = contrasts.mean(_sample(rows, rows.correct), contrasts.SHARES)
        apart_by = contrasts.mean(_sample(likely, likely.right - likely.wrong))
        prefers = contrasts.mean(_sample(likely, likely.right > likely.wrong), contrasts.SHARES)
        seeds = rows.groupby("seed").correct.mean()
        changed, better, worse = (sum(counts) for counts in zip(*rows.corrected, strict=True))
        records.append(
            {"model": model, **taught[model], **costs.loc[model].to_dict()}
            | {"split": split, "asks": SPLITS[split].asks, "trained": SPLITS[split].trained, "spared": spared}
            | {"steps": steps, "seeds": len(seeds), "n": len(rows), "facts": rows.fact.nunique()}
            | {"accuracy": share.estimate, "ci_low": share.low, "ci_high": share.high}
            | {"seed_low": seeds.min(), "seed_high": seeds.max()}
            | {"kind": likely.kind.iloc[0], "log_likelihood": likely.right.mean()}
            | {"likelier": apart_by.estimate, "likelier_low": apart_by.low, "likelier_high": apart_by.high}
            | {"prefers": prefers.estimate, "prefers_low": prefers.low, "prefers_high": prefers.high}
            | {"changed": changed, "better": better, "worse": worse}
        )
    return pd.DataFrame(records).astype({"steps": "Int64", "rows": int, "flops": float})


def _told(rows, taught, apart):
    """Rows with the split that asks the same of any people, and whether their subject was spared."""
    spares = {model: how["people"] if how["spare"] != "none" else 0.0 for model, how in taught.items()}
    rows = rows[rows.split.isin([*ALIKE, *(name for name, split in SPLITS.items() if split.trained != "both")])]
    spared = [facts.among(fact, spares[model], apart) for model, fact in zip(rows.model, rows.fact, strict=True)]
    return rows.assign(spared=spared, split=rows.split.replace(ALIKE))


def _sample(rows, values):
    return contrasts.Sample(values, rows.fact, rows.template.astype(str))
