"""Ablations of the sampler: recall with one setting changed at a time, the others as configured."""

import pandas as pd

from ..common import intervals
from ..common.errors import UserError
from . import evaluation
from .sampling import Sampling


def list_variants(sampling, factors):
    """[(factor, value, sampling)] for each value of each factor, the configured one included."""
    return [
        (factor, value, {**sampling, factor: value})
        for factor, values in factors.items()
        for value in dict.fromkeys([sampling[factor], *values])
    ]


def ablate(net, tokenizer, splits, *, sampling, factors, job=None):
    """A table of one diffusion network's recall for each variant of the sampler and each of `splits` {split: rows}.

    `sampling` has the fields of `Sampling` and one number of `steps`. A variant that is not possible, such as a canvas
    too small for the rows, is logged and skipped.
    """
    variants = list_variants(sampling, factors)
    records = []
    progress = job.progress(len(variants) * len(splits), "ablations", "runs") if job else None
    for factor, value, options in variants:
        for split, rows in splits.items():
            try:
                variant = Sampling(**{name: options[name] for name in options if name != "steps"})
                completions = evaluation.complete_split(
                    net, tokenizer, rows, variant, split=split, steps=options["steps"]
                )
            except UserError as error:
                if value == sampling[factor]:
                    raise
                if job:
                    job.log_line(f"{factor} {value} is skipped: {error}")
                break
            correct = sum(completion["correct"] for completion in completions)
            accuracy = intervals.wilson(correct, len(completions))
            label = "none" if value is None else value
            records.append((factor, label, value == sampling[factor], split, len(completions), correct, *accuracy))
            if progress:
                progress.advance(**{factor: label})
    columns = ["factor", "value", "configured", "split", "n", "correct", "accuracy", "ci_low", "ci_high"]
    return pd.DataFrame(records, columns=columns)
