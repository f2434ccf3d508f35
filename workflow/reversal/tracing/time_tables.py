"""When the subject is needed, over many facts: what `time` found, with intervals. No network is needed."""

import numpy as np
import pandas as pd

from ..common import contrasts, intervals
from ..common.contrasts import SHARES, Sample

COLUMNS = ["model", "seed", "split", "reading", "hidden", "kind", "layer", "stage", "step", "revealed", "n", "mean"]
COLUMNS += ["ci_low", "ci_high"]


def aggregate(found, *, model, seed, split):
    """The rows of the study's table of time, of one split: means over the facts of what `time.when_needed` found.

    By `reading`: "rests", what hiding costs in nats, by stage, and by how many tokens of the answer are revealed
    ("excess": what hiding both costs beyond the sum of the two); "each", what hiding the subject costs each token still
    to come, at t1, at t2, and the "change" between them, fact by fact, of answers that take more than one step;
    "recalled", the share of finished answers that are right, by the step from which or until which something is hidden;
    "carried", the share that a state put back at t1 alone returns later of what the canvas of the clean run would, and
    at stage "end" the share of finished answers that are right. n counts facts.
    """
    rests = _of(found, "rests")
    rows = [*_rests(rests), *_each(rests), *_recalled(_of(found, "recalled")), *_carried(_of(found, "carried"))]
    table = pd.DataFrame(rows, columns=COLUMNS).assign(model=model, seed=seed, split=split)
    return table.astype({name: "Int64" for name in ("layer", "step", "revealed", "n")})


def _of(found, reading):
    return found[found.reading == reading]


def _row(about, n, found):
    return about | {"n": n, "mean": found.estimate, "ci_low": found.low, "ci_high": found.high}


def _rests(found):
    for by in ("stage", "revealed"):
        for at, rows in found.groupby(by, sort=False):
            # Where a stage has several steps of one fact, the middle one stands for it: steps are never averaged.
            rows = rows.sort_values("step").groupby(["fact", "hidden", "kind"], dropna=False, sort=False)
            rows = rows.apply(lambda some: some.iloc[len(some) // 2].value)
            clean = rows.xs("neither", level="hidden").droplevel("kind")
            costs = {
                key: clean - values.droplevel(["hidden", "kind"])
                for key, values in rows.groupby(level=["hidden", "kind"], dropna=False, sort=False)
                if key[0] != "neither"
            }
            subject = next(cost for (hidden, _), cost in costs.items() if hidden == "subject")
            for kind in [kind for hidden, kind in costs if hidden == "both"]:
                costs["excess", kind] = costs["both", kind] - costs["revealed", kind] - subject
            for (hidden, kind), cost in costs.items():
                about = {"reading": "rests", "hidden": hidden, "kind": kind, by: at}
                yield _row(about, cost.notna().sum(), intervals.mean(cost))


def _each(found):
    found = found[found.hidden.isin(["neither", "subject"])].assign(nats=lambda rows: rows.value / rows.remaining)
    costs = found.pivot_table(index="fact", columns=["stage", "hidden"], values="nats")
    if {"t1", "t2"} <= set(found.stage):
        first, last = (costs[stage].neither - costs[stage].subject for stage in ("t1", "t2"))
        both = (first + last).notna()
        for stage, cost in {"t1": first, "t2": last, "change": last - first}.items():
            about = {"reading": "each", "hidden": "subject", "stage": stage}
            yield _row(about, both.sum(), intervals.mean(cost[both]))


def _recalled(found):
    for (hidden, kind, layer, step), rows in found.groupby(
        ["hidden", "kind", "layer", "step"], dropna=False, sort=False
    ):
        about = {"reading": "recalled", "hidden": hidden, "kind": kind, "layer": layer, "step": step}
        yield _row(about, len(rows), _share(rows))


def _carried(found):
    end = found.stage == "end"
    for (hidden, kind, layer), rows in found[end].groupby(["hidden", "kind", "layer"], dropna=False, sort=False):
        about = {"reading": "carried", "hidden": hidden, "kind": kind, "layer": layer, "stage": "end"}
        yield _row(about, len(rows), _share(rows))
    for stage, rows in found[~end].groupby("stage", sort=False):
        runs = {
            key: some.set_index("fact").value for key, some in rows.groupby(["hidden", "kind", "layer"], dropna=False)
        }
        clean, never = (
            next(values for key, values in runs.items() if key[0] == name) for name in ("neither", "subject")
        )
        for (hidden, kind, layer), values in runs.items():
            if hidden == "restored":
                about = {"reading": "carried", "hidden": hidden, "kind": kind, "layer": layer, "stage": stage}
                share = contrasts.ratio(np.array(values - never), np.array(clean - never))
                yield _row(about, len(values), share)


def _share(rows):
    return contrasts.mean(Sample(rows.value.to_numpy(), rows.fact.to_numpy()), SHARES)
