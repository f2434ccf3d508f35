"""Ablations of the sampler: recall with one setting changed at a time, the others as configured."""

import pandas as pd

from ..common import intervals
from ..common.errors import UserError
from . import evaluation
from .sampling import Sampling


def ablate(net, tokenizer, splits, *, sampling, factors, job=None):
    """A table of one diffusion network's recall for each variant of the sampler and each of `splits` {split: rows}.

    A variant has one of the `factors` {setting: values} changed; the configured value is always among the values.
    `sampling` has the fields of `Sampling` and one number of `steps`. A variant that is not possible, such as a canvas
    too small for the rows, is logged and skipped.
    """
    variants = [
        (factor, value) for factor, values in factors.items() for value in dict.fromkeys([sampling[factor], *values])
    ]
    records = []
    progress = job.progress(len(variants) * len(splits), "ablations", "runs") if job else None
    for factor, value in variants:
        for split, rows in splits.items():
            options = sampling | {factor: value}
            steps = options.pop("steps")
            try:
                completions = evaluation.complete_split(
                    net, tokenizer, rows, Sampling(**options), split=split, steps=steps
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
