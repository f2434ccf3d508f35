"""Recall and likelihood beside what each model was taught and how: the table of objectives. No network is needed."""

import pandas as pd

from ..common import contrasts
from ..data import facts
from ..data.facts import CONTROL_GROUPS, CONTROL_SPLITS, SPLITS

ALIKE = {  # the split of people who are not protected that asks the same
    name: next(
        like for like, other in SPLITS.items() if (other.group, other.answer_type) == (CONTROL_GROUPS[split.group], split.answer_type)
    )
    for name, split in CONTROL_SPLITS.items()
}


def table(completions, comparisons, histories, taught, apart):
    """Recall per model, split and number of steps, over seeds; those whose subject was protected apart from the others.

    `completions`, `comparisons` and `histories` have the columns model and seed; `taught` {model: what it was taught
    and how, the first columns}; `apart` the ids of the control people's facts. Intervals are over facts and templates;
    `seed_low` and `seed_high` are the least and the most of a seed. `log_likelihood` is that of the right answer, in
    nats, `likelier` how much more it is than a wrong one's. Of tokens that changed after they were shown, `better`
    became right and `worse` wrong.
    """
    completions, comparisons = (_told(rows, taught, apart) for rows in (completions, comparisons))
    costs = histories.groupby(["model", "seed"])[["rows", "flops"]].sum().groupby("model").mean()
    records = []
    for (model, split, protected, steps), rows in completions.groupby(
        ["model", "split", "protected", "steps"], dropna=False, sort=False
    ):
        likely = comparisons[
            (comparisons.model == model) & (comparisons.split == split) & (comparisons.protected == protected)
        ]
        share = contrasts.mean(_sample(rows, rows.correct), contrasts.SHARES)
        apart_by = contrasts.mean(_sample(likely, likely.right - likely.wrong))
        prefers = contrasts.mean(_sample(likely, likely.right > likely.wrong), contrasts.SHARES)
        seeds = rows.groupby("seed").correct.mean()
        changed, better, worse = (sum(counts) for counts in zip(*rows.corrected, strict=True))
        records.append(
            {"model": model, **taught[model], **costs.loc[model].to_dict()}
            | {"split": split, "answer_type": SPLITS[split].answer_type, "trained": SPLITS[split].trained, "protected": protected}
            | {"steps": steps, "seeds": len(seeds), "n": len(rows), "facts": rows.fact.nunique()}
            | {"accuracy": share.estimate, "ci_low": share.low, "ci_high": share.high}
            | {"seed_low": seeds.min(), "seed_high": seeds.max()}
            | {"kind": likely.kind.iloc[0], "log_likelihood": likely.right.mean()}
            | {"log_ratio": apart_by.estimate, "log_ratio_low": apart_by.low, "log_ratio_high": apart_by.high}
            | {"preferred": prefers.estimate, "preferred_low": prefers.low, "preferred_high": prefers.high}
            | {"changed": changed, "better": better, "worse": worse}
        )
    return pd.DataFrame(records).astype({"steps": "Int64", "rows": int, "flops": float})


def _told(rows, taught, apart):
    """Rows with the split that asks the same of any people, and whether their subject was protected."""
    protects = {model: how["people"] if how["protect"] != "none" else 0.0 for model, how in taught.items()}
    rows = rows[rows.split.isin([*ALIKE, *(name for name, split in SPLITS.items() if split.trained != "both")])]
    protected = [facts.among(fact, protects[model], apart) for model, fact in zip(rows.model, rows.fact, strict=True)]
    return rows.assign(protected=protected, split=rows.split.replace(ALIKE))


def _sample(rows, values):
    return contrasts.Sample(values, rows.fact, rows.template.astype(str))
