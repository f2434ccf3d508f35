"""Recall, scored: exact match and BLEU, and the tables that compare models. No network is needed.

Shares are between 0 and 1 in long tables, in percent in the wide ones; both kinds of BLEU run from 0 to 100.
"""

import math
from collections import Counter

import numpy as np
import pandas as pd
import sacrebleu
from scipy import stats

from ..common import intervals
from ..data.facts import SPLITS

TABLE_SPLITS = ("d2p_same", "d2p_reverse", "p2d_same", "p2d_reverse")
BY_TRAINING = {split: f"{split} ({SPLITS[split].file})" for split in TABLE_SPLITS}
# SMDM's evaluation calls a split by its question: those asking for the name are DescriptionToName.
BY_QUESTION = {
    split: f"{question} {SPLITS[split].trained} ({SPLITS[split].file})"
    for question, asks in (("DescriptionToName", "name"), ("NameToDescription", "description"))
    for split in sorted(TABLE_SPLITS, key=lambda split: SPLITS[split].trained, reverse=True)
    if SPLITS[split].asks == asks
}


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


def step_scaling(completions, *, draws, rng):
    """Recall per model, seed, split and number of steps, with Wilson's interval and one clustered on facts.

    `bleu` is sacrebleu's over a whole split, words and punctuation up to 4-grams; names have only two words, so orders
    that no generation reaches are left out.
    """
    bleu = sacrebleu.BLEU(effective_order=True)
    records = []
    for (name, seed, split, steps), rows in _groups(completions, "model", "seed", "split", "steps"):
        share = intervals.wilson(rows.correct.sum(), len(rows))
        cluster = intervals.clustered(rows.correct, rows.fact, draws=draws, rng=rng)
        pairs = list(zip(rows.reference, rows.generation, strict=True))
        references, generations = ([side.strip() for side in sides] for sides in zip(*pairs, strict=True))
        records.append(
            {
                "model": name,
                "seed": seed,
                "split": split,
                "file": _file(split),
                "steps": steps,
                "n": len(rows),
                "correct": int(rows.correct.sum()),
                "accuracy": share.estimate,
                "ci_low": share.low,
                "ci_high": share.high,
                "cluster_low": cluster.low,
                "cluster_high": cluster.high,
                "char_bleu": float(np.mean([char_bleu(*pair) for pair in pairs])),
                "bleu": bleu.corpus_score(generations, [references]).score,
            }
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


def paired_differences(completions, *, diffusion_model, autoregressive_model, draws, rng):
    """Recall of one model minus that of another, row by row, over all seeds they share; interval clustered on facts."""
    keys = ["seed", "split", "fact", "prompt"]
    of = {name: rows for name, rows in completions.groupby("model")}
    pairs = of[diffusion_model].merge(of[autoregressive_model], on=keys, suffixes=("", "_ar"), validate="many_to_one")
    records = []
    for (split, steps), rows in _groups(pairs, "split", "steps"):
        found = intervals.paired(rows.correct, rows.correct_ar, rows.fact, draws=draws, rng=rng)
        records.append(
            {
                "diffusion": diffusion_model,
                "autoregressive": autoregressive_model,
                "split": split,
                "file": _file(split),
                "steps": steps,
                "seeds": rows.seed.nunique(),
                "n": len(rows),
                "diffusion_accuracy": rows.correct.mean(),
                "autoregressive_accuracy": rows.correct_ar.mean(),
                "difference": found.estimate,
                "ci_low": found.low,
                "ci_high": found.high,
            }
        )
    return pd.DataFrame(records).astype({"steps": "Int64"})


def likelihood(comparisons, *, draws, rng):
    """The likelihood test per model, seed and split: is the right completion more likely than a wrong one?

    The interval of the mean difference is clustered on facts, and the p-value is that of a t-test on the facts' means.
    `sampling_error` is the part of the difference's uncertainty that more samples of the bound would remove.
    """
    records = []
    for (name, seed, split), rows in _groups(comparisons, "model", "seed", "split"):
        difference = intervals.paired(rows.right, rows.wrong, rows.fact, draws=draws, rng=rng)
        facts = (rows.right - rows.wrong).groupby(rows.fact).mean()
        records.append(
            {
                "model": name,
                "seed": seed,
                "split": split,
                "file": _file(split),
                "kind": rows.kind.iloc[0],
                "n": len(rows),
                "facts": len(facts),
                "right": rows.right.mean(),
                "wrong": rows.wrong.mean(),
                "difference": difference.estimate,
                "ci_low": difference.low,
                "ci_high": difference.high,
                "p_value": stats.ttest_1samp(facts, 0).pvalue if len(facts) > 1 else math.nan,
                "right_more_likely": (rows.right > rows.wrong).mean(),
                "sampling_error": math.sqrt((rows.right_error**2 + rows.wrong_error**2).sum()) / len(rows),
            }
        )
    return pd.DataFrame(records)


def _groups(table, *keys):
    return table.groupby(list(keys), sort=False, dropna=False)


def _file(split):
    return SPLITS[split].file if split in SPLITS else split
