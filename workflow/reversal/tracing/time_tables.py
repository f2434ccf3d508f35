"""At which steps the subject is needed, averaged over facts with intervals. No network is needed."""

import pandas as pd

from ..common import contrasts, intervals
from ..common.contrasts import SHARES, Sample

COLUMNS = ["model", "seed", "split", "reading", "corrupted", "kind", "layer", "stage", "step", "revealed", "n", "mean"]
COLUMNS += ["ci_low", "ci_high"]


def aggregate(values, *, model, seed, split):
    """The rows of time.csv for one split: means over facts of the `values` that `time.measure_timing` returns.

    By `reading`:
    - "sequential": nats lost of the tokens still to come, each given those before it, by stage and by the number of
      revealed answer tokens; "interaction" is the effect of corrupting both minus the sum of the two.
    - "per_token": the "change" of these nats from t1 to t2, for each token still to come, over facts whose answers take
      more than one step.
    - "recall": share of right answers, by the step from which or until which something is corrupted.
    n counts facts.
    """
    scores = values[values.reading == "sequential"]
    rows = [
        *_average_total_effects(scores),
        *_average_per_token(scores),
        *_average_recall(values[values.reading == "recall"]),
    ]
    table = pd.DataFrame(rows, columns=COLUMNS).assign(model=model, seed=seed, split=split)
    return table.astype({name: "Int64" for name in ("layer", "step", "revealed", "n")})


def _make_row(labels, n, interval):
    return labels | {"n": n, "mean": interval.estimate, "ci_low": interval.low, "ci_high": interval.high}


def _average_total_effects(values):
    for axis in ("stage", "revealed"):
        for level, rows in values.groupby(axis, sort=False):
            # Where a fact has several steps in one stage, the middle one is taken: steps are never averaged.
            in_order = rows.sort_values("step", kind="stable")  # NumPy's default orders equal steps by machine
            runs = in_order.groupby(["fact", "corrupted", "kind"], dropna=False, sort=False)
            runs = runs.apply(lambda steps: steps.iloc[len(steps) // 2].value)
            clean = runs.xs("neither", level="corrupted").droplevel("kind")
            effects = {
                key: clean - scores.droplevel(["corrupted", "kind"])
                for key, scores in runs.groupby(level=["corrupted", "kind"], dropna=False, sort=False)
                if key[0] != "neither"
            }
            subject = next(effect for (corrupted, _), effect in effects.items() if corrupted == "subject")
            for kind in [kind for corrupted, kind in effects if corrupted == "both"]:
                effects["interaction", kind] = effects["both", kind] - effects["revealed", kind] - subject
            for (corrupted, kind), effect in effects.items():
                labels = {"reading": "sequential", "corrupted": corrupted, "kind": kind, axis: level}
                yield _make_row(labels, effect.notna().sum(), intervals.mean(effect))


def _average_per_token(values):
    values = values[values.corrupted.isin(["neither", "subject"])]
    values = values.assign(nats=lambda rows: rows.value / rows.remaining)
    runs = values.pivot_table(index="fact", columns=["stage", "corrupted"], values="nats")
    if {"t1", "t2"} <= set(values.stage):
        first, last = (runs[stage].neither - runs[stage].subject for stage in ("t1", "t2"))
        change = (last - first).dropna()
        labels = {"reading": "per_token", "corrupted": "subject", "stage": "change"}
        yield _make_row(labels, len(change), intervals.mean(change))


def _average_recall(values):
    keys = ["corrupted", "kind", "layer", "step"]
    for key, rows in values.groupby(keys, dropna=False, sort=False):
        labels = {"reading": "recall"} | dict(zip(keys, key, strict=True))
        share = contrasts.mean(Sample(rows.value.to_numpy(), rows.fact.to_numpy()), SHARES)
        yield _make_row(labels, len(rows), share)
