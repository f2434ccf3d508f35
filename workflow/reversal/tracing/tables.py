"""Traces over many facts: mean effects by token role, layer and step, with intervals."""

import numpy as np
import pandas as pd

from ..common import intervals
from ..data.facts import SPLITS
from .effects import effects_by_role, mean
from .vocabulary import CORRUPTIONS, ROLES, SCORES, STAGES

KEYS = ["model", "seed", "split", "direction", "kind", "corruption", "score", "stage", "step", "layer", "role"]
COLUMNS = [*KEYS, "n", "mean", "ci_low", "ci_high"]


def count_outcomes(outcomes):
    """How many facts were traced and why the others were not: columns corruption, outcome, n."""
    return outcomes.groupby(["corruption", "outcome"], sort=False).size().rename("n").reset_index()


def stages(trace):
    """The stage of each step."""
    t1, t2 = trace.about["t1"], trace.about["t2"]
    names = {t1: "first", t2: "last"} if t1 != t2 else {t1: "only"}
    return [names.get(step, "middle") for step in trace.steps]


def aggregate(traces, *, model, seed, split):
    """Mean effects over the facts of one split, with 95% intervals: the rows of the study's table of traces.

    `mean` is the average indirect effect, restored − corrupted, of a kind's layer at the tokens of a role. Kind "total"
    is clean − corrupted, "clean" and "corrupted" the scores themselves; these have no layer and role "all". Rows with a
    `step` are about that step; rows without are about the `stage`, "all" being all steps of a fact. n counts facts.
    """
    frames = []
    for corruption in CORRUPTIONS:
        own = [trace for trace in traces if corruption in trace.kinds]
        for score in SCORES if own else ():
            effects = [effects_by_role(trace, corruption, score) for trace in own]
            scores = [_scores(trace, corruption, score) for trace in own]
            names = {"corruption": [corruption], "score": [score]}
            axes = {"kind": own[0].kinds[corruption], "role": ROLES, "layer": range(effects[0].shape[-1])}
            frames += _tables([value.swapaxes(0, 1) for value in effects], own, names | axes)
            axes = {"kind": ("clean", "corrupted", "total"), "role": ["all"], "layer": [pd.NA]}
            frames += _tables([value.T[..., None, None] for value in scores], own, names | axes)
    if not frames:
        return pd.DataFrame(columns=COLUMNS)
    table = pd.concat(frames, ignore_index=True)
    table = table[table.n > 0].assign(model=model, seed=seed, split=split, direction=SPLITS[split].direction)
    return table.astype({"step": "Int64", "layer": "Int64", "n": int})[COLUMNS].reset_index(drop=True)


def _scores(trace, corruption, score):
    clean, corrupted = trace.arrays[f"{score}.clean"], trace.arrays[f"{score}.{corruption}.corrupted"]
    return np.stack([clean, corrupted, clean - corrupted]).astype(float)


def _tables(values, traces, axes):
    """Tables by stage and by step of facts' `values`, each (S, kinds, roles, L); `axes` name all but the first."""
    by_stage, by_step = [], []
    steps = sorted({step for trace in traces for step in trace.steps})
    for value, trace in zip(values, traces, strict=True):
        stage = np.array(stages(trace))
        by_stage.append([mean(value[stage == name]) for name in STAGES] + [mean(value)])
        by_step.append([mean(value[np.array(trace.steps) == step]) for step in steps])
    return [
        _table(by_stage, {"stage": [*STAGES, "all"], "step": [pd.NA], **axes}),
        _table(by_step, {"stage": ["all"], "step": steps, **axes}),
    ]


def _table(values, axes):
    """A row for each combination of the `axes`, with the mean of `values` (facts, ...) and its interval."""
    values = np.array(values, float)
    found = intervals.mean(values)
    index = pd.MultiIndex.from_product(list(axes.values()), names=list(axes))
    parts = {"n": (~np.isnan(values)).sum(0), "mean": found.estimate, "ci_low": found.low, "ci_high": found.high}
    return pd.DataFrame({name: part.ravel() for name, part in parts.items()}, index=index).reset_index()
