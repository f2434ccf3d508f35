"""Recall, scored: does an answer contain its reference, BLEU, and the tables that compare models. No network is needed.

Every interval is over facts and templates (`contrasts`). Shares are between 0 and 1 in long tables, in percent in the
wide ones; both kinds of BLEU run from 0 to 100.
"""

import math
from collections import Counter
from typing import NamedTuple

import numpy as np
import pandas as pd
import sacrebleu

from ..common import contrasts
from ..data.facts import ANY_SPLIT, KNOWN, SPLITS

TABLE_SPLITS = ("d2p_same", "d2p_reverse", "p2d_same", "p2d_reverse")
BY_TRAINING = {split: f"{split} ({SPLITS[split].file})" for split in TABLE_SPLITS}
# SMDM's evaluation calls a split by its question: those asking for the name are DescriptionToName.
BY_QUESTION = {
    split: f"{question} {SPLITS[split].trained} ({SPLITS[split].file})"
    for question, answer_type in (("DescriptionToName", "name"), ("NameToDescription", "description"))
    for split in sorted(TABLE_SPLITS, key=lambda split: SPLITS[split].trained, reverse=True)
    if SPLITS[split].answer_type == answer_type
}
FAMILY_PAIR = ("diffusion", "autoregressive")
TURNED = {  # a split asked as taught and one asked in reverse: what they have in common
    (same, reverse): "question" if SPLITS[same].answer_type == SPLITS[reverse].answer_type else "people"
    for same in TABLE_SPLITS
    for reverse in TABLE_SPLITS
    if (SPLITS[same].trained, SPLITS[reverse].trained) == ("same", "reverse")
} | {tuple(KNOWN): "people"}


def char_bleu(reference, generation):
    """BLEU of one sentence over characters, both sides lower-cased and stripped.

    SMDM hands strings, not lists of words, to nltk's `sentence_bleu`: 1- to 4-grams of characters, unsmoothed, with
    brevity penalty. Its score is the mean over sentences.
    """
    reference, generation = reference.strip().lower(), generation.strip().lower()
    log_precision = 0.0
    for n in range(1, 5):
        wanted, found = _ngrams(reference, n), _ngrams(generation, n)
        shared = (wanted & found).total()
        if not shared:
            return 0.0
        log_precision += math.log(shared / found.total()) / 4
    brevity = min(0.0, 1 - len(reference) / len(generation))
    return 100 * math.exp(brevity + log_precision)


def _ngrams(string, n):
    return Counter(string[i : i + n] for i in range(len(string) - n + 1))


def step_scaling(completions):
    """Recall per model, seed, split and number of steps, with its interval.

    `bleu` is sacrebleu's over a whole split, words and punctuation up to 4-grams; names have only two words, so orders
    that no generation reaches are left out.
    """
    bleu = sacrebleu.BLEU(effective_order=True)
    records = []
    for (name, seed, split, steps), rows in _groups(completions, "model", "seed", "split", "steps"):
        found = contrasts.mean(_sample(rows, rows.correct), contrasts.SHARES)
        pairs = list(zip(rows.reference, rows.generation, strict=True))
        references, generations = ([side.strip() for side in sides] for sides in zip(*pairs, strict=True))
        records.append(
            _of(name, seed, split)
            | {"steps": steps, "n": len(rows), "correct": int(rows.correct.sum())}
            | {"accuracy": found.estimate, "ci_low": found.low, "ci_high": found.high}
            | {"char_bleu": float(np.mean([char_bleu(*pair) for pair in pairs]))}
            | {"bleu": bleu.corpus_score(generations, [references]).score}
        )
    return pd.DataFrame(records).astype({"steps": "Int64"})


def by_training_direction(scaling, smdm=None):
    """Recall in percent, averaged over seeds: a column per split, named as the post does, by training direction.

    `smdm` (columns steps and the splits, in percent) adds a column of SMDM's own values beside each of ours.
    """
    return _wide(scaling, BY_TRAINING, smdm)


def by_question_direction(scaling, smdm=None):
    """The same numbers named as SMDM does, by the direction of the question."""
    return _wide(scaling, BY_QUESTION, smdm)


def _wide(scaling, names, smdm):
    keys = ["model", "steps"]
    mean = scaling.groupby(["model", "steps", "split"], sort=False, dropna=False).accuracy.mean() * 100
    wide = mean.unstack("split").reset_index()
    seeds = scaling.groupby(keys, sort=False, dropna=False).seed.nunique().rename("seeds").reset_index()
    wide = wide.merge(seeds, on=keys, how="left")
    columns = {"model": wide["model"], "steps": wide["steps"].astype("Int64"), "seeds": wide["seeds"]}
    for split, name in names.items():
        if split not in wide:
            continue
        columns[name] = wide[split]
        if smdm is not None:
            columns[f"{name}, SMDM"] = wide["steps"].map(smdm.set_index("steps")[split])
    return pd.DataFrame(columns)


class Answers(NamedTuple):
    """Which answers of a study: of one model to one split, in so many steps where it takes any."""

    model: str
    split: str
    steps: int | None = None


def differences(completions, families):
    """Recall of some answers less that of others, over the seeds both have, with its interval; a row a `contrast`.

    family       a diffusion model against an autoregressive one, the same prompts
    steps        the most denoising steps against fewer, the same prompts
    question     as taught against in reverse, the same question about other people
    people       as taught against in reverse, the same people asked another question

    `agree` is the share of prompts marked alike, where the prompts are the same. `families` is {model: family}.
    """
    answered = {
        Answers(model, split, None if pd.isna(steps) else int(steps)): rows
        for (model, split, steps), rows in _groups(completions, "model", "split", "steps")
    }
    records = []
    for kind, one, other in _pairs(answered, families):
        first, second = answered[one], answered[other]
        seeds = set(first.seed) & set(second.seed)
        first, second = (rows[rows.seed.isin(seeds)] for rows in (first, second))
        samples = [_sample(rows, rows.correct) for rows in (first, second)]
        found = contrasts.difference(*samples, contrasts.CHANGES)
        alike = first.merge(second, on=["seed", "fact", "prompt"])
        records.append(
            {"contrast": kind, **one._asdict()}
            | {f"against_{name}": value for name, value in other._asdict().items()}
            | {"seeds": len(seeds), "n": len(first)}
            | {"first": first.correct.mean(), "second": second.correct.mean()}
            | {"difference": found.estimate, "ci_low": found.low, "ci_high": found.high}
            | {"agree": (alike.correct_x == alike.correct_y).mean() if one.split == other.split else math.nan}
        )
    columns = ["contrast", *Answers._fields, *(f"against_{name}" for name in Answers._fields)]
    columns += ["seeds", "n", "first", "second", "difference", "ci_low", "ci_high", "agree"]
    return pd.DataFrame(records, columns=columns).astype({"steps": "Int64", "against_steps": "Int64"})


def _pairs(answered, families):
    """(contrast, answers, the answers they are compared with), for what there is."""
    most = {
        model: max((one.steps for one in answered if one.model == model and one.steps), default=None)
        for model in families
    }
    for one in answered:
        for other in answered:
            last = one.steps == most[one.model] and other.steps == most[other.model]
            if one.split == other.split and (families[one.model], families[other.model]) == FAMILY_PAIR:
                yield "family", one, other
            elif one[:2] == other[:2] and one.steps == most[one.model] and one.steps != other.steps:
                yield "steps", one, other
            elif one.model == other.model and last and (one.split, other.split) in TURNED:
                yield TURNED[one.split, other.split], one, other


def likelihood(comparisons):
    """The likelihood test per model, seed and split: is the right completion more likely than a wrong one?

    `difference` and `right_more_likely` have intervals. `sampling_error` is the part of the difference's uncertainty
    that more samples of the masks would remove.
    """
    records = []
    for (name, seed, split), rows in _groups(comparisons, "model", "seed", "split"):
        difference = contrasts.mean(_sample(rows, rows.right - rows.wrong))
        preferred = contrasts.mean(_sample(rows, rows.right > rows.wrong), contrasts.SHARES)
        records.append(
            _of(name, seed, split)
            | {"kind": rows.kind.iloc[0], "n": len(rows), "facts": rows.fact.nunique()}
            | {"right": rows.right.mean(), "wrong": rows.wrong.mean()}
            | {"difference": difference.estimate, "ci_low": difference.low, "ci_high": difference.high}
            | {"right_more_likely": preferred.estimate}
            | {"preferred_low": preferred.low, "preferred_high": preferred.high}
            | {"sampling_error": math.sqrt((rows.right_error**2 + rows.wrong_error**2).sum()) / len(rows)}
        )
    return pd.DataFrame(records)


def _sample(rows, values):
    """The `contrasts.Sample` of rows; templates of different questions are different ones."""
    asked = rows.split.map(lambda split: ANY_SPLIT[split].direction if split in ANY_SPLIT else split)
    return contrasts.Sample(values, rows.fact, asked + " " + rows.template.astype(str))


def _groups(table, *keys):
    return table.groupby(list(keys), sort=False, dropna=False)


def _of(model, seed, split):
    file = ANY_SPLIT[split].file if split in ANY_SPLIT else split
    return {"model": model, "seed": seed, "split": split, "file": file}
