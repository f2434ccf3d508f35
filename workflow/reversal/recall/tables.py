"""Tables of recall and likelihood: accuracy, and differences between models. They need no network.

Every interval is over facts and templates (`contrasts`).
"""

from typing import NamedTuple

import pandas as pd

from ..common import contrasts
from ..data.facts import ANY_SPLIT, KNOWN, SPLITS

TABLE_SPLITS = ("d2p_same", "d2p_reverse", "p2d_same", "p2d_reverse")
FAMILY_PAIR = ("diffusion", "autoregressive")
# {(split in the same direction as training, split in the reverse direction): what they share}.
REVERSALS = {
    (same, reverse): "question" if SPLITS[same].answer_type == SPLITS[reverse].answer_type else "people"
    for same in TABLE_SPLITS
    for reverse in TABLE_SPLITS
    if (SPLITS[same].trained, SPLITS[reverse].trained) == ("same", "reverse")
} | {tuple(KNOWN): "people"}


def step_scaling(completions):
    """Recall per model, seed, split and number of steps, with its interval; `file` is the split's published name."""
    records = []
    for (name, seed, split, steps), rows in _group_by(completions, "model", "seed", "split", "steps"):
        accuracy = contrasts.mean(make_sample(rows, rows.correct), contrasts.SHARES)
        records.append(
            _key_columns(name, seed, split)
            | {"steps": steps, "n": len(rows), "correct": int(rows.correct.sum())}
            | {"accuracy": accuracy.estimate, "ci_low": accuracy.low, "ci_high": accuracy.high}
        )
    return pd.DataFrame(records).astype({"steps": "Int64"})


class Condition(NamedTuple):
    """The completions of one model for one split, after `steps` denoising steps (None: autoregressive)."""

    model: str
    split: str
    steps: int | None = None


def differences(completions, families):
    """Differences in recall between two conditions, over the seeds that both have, with intervals.

    family       a diffusion model against an autoregressive one, same prompts
    steps        the most denoising steps against fewer, same prompts
    question     same direction against reverse direction, same question about other people
    people       same direction against reverse direction, same people and another question

    `families` is {model: family}.
    """
    rows_of = {
        Condition(model, split, None if pd.isna(steps) else int(steps)): rows
        for (model, split, steps), rows in _group_by(completions, "model", "split", "steps")
    }
    records = []
    for contrast, condition, other in _list_contrasts(rows_of, families):
        first, second = rows_of[condition], rows_of[other]
        seeds = set(first.seed) & set(second.seed)
        first, second = (rows[rows.seed.isin(seeds)] for rows in (first, second))
        samples = [make_sample(rows, rows.correct) for rows in (first, second)]
        difference = contrasts.difference(*samples, contrasts.CHANGES)
        records.append(
            {"contrast": contrast, **condition._asdict()}
            | {f"against_{name}": value for name, value in other._asdict().items()}
            | {"seeds": len(seeds), "n": len(first)}
            | {"difference": difference.estimate, "ci_low": difference.low, "ci_high": difference.high}
        )
    columns = ["contrast", *Condition._fields, *(f"against_{name}" for name in Condition._fields)]
    columns += ["seeds", "n", "difference", "ci_low", "ci_high"]
    return pd.DataFrame(records, columns=columns).astype({"steps": "Int64", "against_steps": "Int64"})


def _list_contrasts(conditions, families):
    """Yield (contrast, condition, the condition to compare it with)."""
    max_steps = {
        model: max(
            (condition.steps for condition in conditions if condition.model == model and condition.steps), default=None
        )
        for model in families
    }
    for condition in conditions:
        for other in conditions:
            have_most = condition.steps == max_steps[condition.model] and other.steps == max_steps[other.model]
            if condition.split == other.split and (families[condition.model], families[other.model]) == FAMILY_PAIR:
                yield "family", condition, other
            elif (
                condition[:2] == other[:2]
                and condition.steps == max_steps[condition.model]
                and condition.steps != other.steps
            ):
                yield "steps", condition, other
            elif condition.model == other.model and have_most and (condition.split, other.split) in REVERSALS:
                yield REVERSALS[condition.split, other.split], condition, other


def likelihood(comparisons):
    """The likelihood test per model, seed and split: is the right completion more likely than a wrong one?

    `difference` is in nats, `right_more_likely` the share of prompts; both have intervals.
    """
    records = []
    for (name, seed, split), rows in _group_by(comparisons, "model", "seed", "split"):
        difference = contrasts.mean(make_sample(rows, rows.right - rows.wrong))
        preferred = contrasts.mean(make_sample(rows, rows.right > rows.wrong), contrasts.SHARES)
        records.append(
            _key_columns(name, seed, split)
            | {"kind": rows.kind.iloc[0], "n": len(rows), "facts": rows.fact.nunique()}
            | {"right": rows.right.mean(), "wrong": rows.wrong.mean()}
            | {"difference": difference.estimate, "ci_low": difference.low, "ci_high": difference.high}
            | {"right_more_likely": preferred.estimate}
            | {"preferred_low": preferred.low, "preferred_high": preferred.high}
        )
    return pd.DataFrame(records)


def make_sample(rows, values):
    """The `contrasts.Sample` of rows; a template is known by its number and the direction of its question."""
    direction = rows.split.map(lambda split: ANY_SPLIT[split].direction if split in ANY_SPLIT else split)
    return contrasts.Sample(values, rows.fact, direction + " " + rows.template.astype(str))


def _group_by(table, *keys):
    return table.groupby(list(keys), sort=False, dropna=False)


def _key_columns(model, seed, split):
    file = ANY_SPLIT[split].file if split in ANY_SPLIT else split
    return {"model": model, "seed": seed, "split": split, "file": file}
