"""The table of training objectives: recall and likelihood beside what each model was trained on and how."""

import pandas as pd

from ..common import contrasts
from ..data import facts
from ..data.facts import CONTROL_GROUPS, CONTROL_SPLITS, RECALL_SPLITS, SPLITS
from .tables import make_sample

# {split of control people: the split with the same questions about the group that they match}.
MATCHED_SPLITS = {
    name: next(
        matched
        for matched, other in SPLITS.items()
        if (other.group, other.answer_type) == (CONTROL_GROUPS[split.group], split.answer_type)
    )
    for name, split in CONTROL_SPLITS.items()
}


def make_table(completions, comparisons, histories, training, control_facts):
    """Recall per model, split, protection and number of steps, over seeds.

    `completions`, `comparisons` and `histories` have the columns model and seed; `training` is {model: the columns that
    say how it was trained}; `control_facts` are the ids of the control people's facts. Rows of facts whose subject was
    `protected` are apart from the others. Intervals are over facts and templates. `log_likelihood` is that of the right
    answer in nats, `log_ratio` what it exceeds a wrong answer's by.
    """
    completions, comparisons = (_mark_protected(rows, training, control_facts) for rows in (completions, comparisons))
    costs = histories.groupby(["model", "seed"])[["rows", "flops"]].sum().groupby("model").mean()
    records = []
    for (model, split, protected, steps), rows in completions.groupby(
        ["model", "split", "protected", "steps"], dropna=False, sort=False
    ):
        pairs = comparisons[
            (comparisons.model == model) & (comparisons.split == split) & (comparisons.protected == protected)
        ]
        accuracy = contrasts.mean(make_sample(rows, rows.correct), contrasts.SHARES)
        log_ratio = contrasts.mean(make_sample(pairs, pairs.right - pairs.wrong))
        preferred = contrasts.mean(make_sample(pairs, pairs.right > pairs.wrong), contrasts.SHARES)
        records.append(
            {"model": model, **training[model], **costs.loc[model].to_dict()}
            | {"split": split, "answer_type": SPLITS[split].answer_type, "trained": SPLITS[split].trained}
            | {"protected": protected}
            | {"steps": steps, "seeds": rows.seed.nunique(), "n": len(rows), "facts": rows.fact.nunique()}
            | {"accuracy": accuracy.estimate, "ci_low": accuracy.low, "ci_high": accuracy.high}
            | {"kind": pairs.kind.iloc[0], "log_likelihood": pairs.right.mean()}
            | {"log_ratio": log_ratio.estimate, "log_ratio_low": log_ratio.low, "log_ratio_high": log_ratio.high}
            | {"preferred": preferred.estimate, "preferred_low": preferred.low, "preferred_high": preferred.high}
        )
    table = pd.DataFrame(records)
    whole_numbers = {name: "Int64" for name in ("steps", "block") if name in table}
    return table.astype(whole_numbers | {"rows": int, "flops": float})


def _mark_protected(rows, training, control_facts):
    """Rows of the recall splits, control people's under the split they match, with the column `protected`."""
    people = {model: columns["people"] if columns["protect"] != "none" else 0.0 for model, columns in training.items()}
    rows = rows[rows.split.isin([*MATCHED_SPLITS, *RECALL_SPLITS])]
    protected = [
        facts.is_protected(fact, people[model], control_facts)
        for model, fact in zip(rows.model, rows.fact, strict=True)
    ]
    return rows.assign(protected=protected, split=rows.split.replace(MATCHED_SPLITS))


def predicts_subject_from_object(row):
    """Whether training predicts the subject with the object visible, for the people of a `row` of the table.

    None: in some presentations, as often as `exposure` says.
    """
    if row.protected:
        return None if row.exposure else False
    return row.family == "diffusion" or "reversed" in row.train_on or getattr(row, "masked_context", 0) > 0
