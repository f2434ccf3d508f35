"""What each choice of the sampler is worth: one is changed at a time, the others stay as configured."""

import pandas as pd

from ..common import intervals
from ..common.errors import UserError
from . import evaluation
from .sampling import Sampling


def variants(sampling, factors):
    """Every sampling to try: [(factor, value, sampling)], the configured value of each factor among them."""
    found = []
    for factor, values in factors.items():
        for value in dict.fromkeys([sampling[factor], *values]):
            found.append((factor, value, {**sampling, factor: value}))
    return found


def ablate(net, tokenizer, splits, *, sampling, factors, job=None):
    """Recall of one diffusion network for each variant and split: factor, value, configured, split, n, correct, …

    `splits` {split: rows}; `sampling` has the fields of `Sampling`, and one number of `steps`. A variant that can not
    be is left out: a canvas too small for the rows, say.
    """
    tried = variants(sampling, factors)
    records = []
    progress = job.progress(len(tried) * len(splits), "ablations", "runs") if job else None
    for factor, value, options in tried:
        for split, rows in splits.items():
            try:
                how = Sampling(**{name: options[name] for name in options if name != "steps"})
                completed = evaluation.complete_split(net, tokenizer, rows, how, split=split, steps=options["steps"])
            except UserError as error:
                if value == sampling[factor]:
                    raise
                if job:
                    job.say(f"{factor} {value} is left out: {error}")
                break
            correct = sum(completion["correct"] for completion in completed)
            share = intervals.wilson(correct, len(completed))
            shown = "none" if value is None else value
            records.append((factor, shown, value == sampling[factor], split, len(completed), correct, *share))
            if progress:
                progress.advance(**{factor: shown})
    columns = ["factor", "value", "configured", "split", "n", "correct", "accuracy", "ci_low", "ci_high"]
    return pd.DataFrame(records, columns=columns)
