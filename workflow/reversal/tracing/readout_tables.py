"""The logit lens, effects of single heads, and attribution patching, averaged over facts. No network is needed."""

import numpy as np
import pandas as pd

from ..common import contrasts, intervals

KEYS, ESTIMATE = ["model", "seed", "split"], ["n", "mean", "ci_low", "ci_high"]
LENS_COLUMNS = [*KEYS, "reading", "token", "step", "layer", *ESTIMATE]
HEADS_COLUMNS = [*KEYS, "layer", "head", *ESTIMATE]
ATTRIBUTION_COLUMNS = [*KEYS, "stage", "measure", *ESTIMATE]
READABLE = 0.5  # probability in the last layer from which a token counts as readable


def average_lens(values, *, model, seed, split):
    """The rows of logit_lens.csv for one split: means over facts of the `values` of `readouts.read_layers`.

    By `reading`:
    - "probability": of the answer tokens still masked, by step and layer;
    - "at_reveal": of each token at the step that reveals it, by layer;
    - "readable": the first step at which the last layer gives a token half of the probability, and "revealed": the
      step that reveals it; by the order in which tokens are revealed.
    """
    at_reveal = values[values.step == values.revealed]
    last = values[values.layer == values.layer.max()]
    tokens = last.groupby(["fact", "token"], as_index=False).revealed.first()
    readable = last[last.probability >= READABLE].groupby(["fact", "token"]).step.min().rename("readable")
    tokens = tokens.join(readable, on=["fact", "token"])
    # A token may be revealed before it is readable: guidance, or the last step, chooses it.
    tokens["readable"] = tokens.readable.fillna(tokens.revealed)
    rows = [
        *_average(values, "probability", ["step", "layer"], "probability"),
        *_average(at_reveal, "at_reveal", ["layer"], "probability"),
        *_average(tokens, "readable", ["token"], "readable"),
        *_average(tokens, "revealed", ["token"], "revealed"),
    ]
    table = pd.DataFrame(rows, columns=LENS_COLUMNS).assign(model=model, seed=seed, split=split)
    return table.astype({name: "Int64" for name in ("token", "step", "layer", "n")})


def _average(values, reading, keys, column):
    for key, rows in values.groupby(keys):
        by_fact = rows.groupby("fact")[column].mean()
        labels = {"reading": reading} | dict(zip(keys, key, strict=True))
        yield labels | _estimate(len(by_fact), intervals.mean(by_fact))


def _estimate(n, interval):
    return dict(zip(ESTIMATE, (n, *interval), strict=True))


def average_heads(values, *, model, seed, split):
    """The rows of attention_heads.csv for one split: shares of the total effect that single heads recover."""
    rows = []
    for (layer, head), of_head in values.groupby(["layer", "head"]):
        share = contrasts.ratio(np.array(of_head.effect), np.array(of_head.total))
        rows.append({"layer": layer, "head": head} | _estimate(len(of_head), share))
    return pd.DataFrame(rows, columns=HEADS_COLUMNS).assign(model=model, seed=seed, split=split)


def average_attribution(values, *, model, seed, split):
    """The rows of attribution.csv for one split: means over facts of each measure of `readouts.measure_attribution`."""
    rows = [
        {"stage": stage, "measure": measure}
        | _estimate(of_stage[measure].notna().sum(), intervals.mean(of_stage[measure]))
        for stage, of_stage in values.groupby("stage", sort=False)
        for measure in ("correlation", "missed", "cost")
    ]
    return pd.DataFrame(rows, columns=ATTRIBUTION_COLUMNS).assign(model=model, seed=seed, split=split)
