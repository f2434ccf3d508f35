"""Which layers to look at: all, some, or those where tracing finds that MLPs matter most."""

import json
from pathlib import Path

import numpy as np

from ..common.errors import UserError
from ..data.facts import SPLITS
from ..tracing.effects import effects_by_role, mean
from ..tracing.vocabulary import ROLES, leading

DIRECTIONS = ("p2d", "d2p")  # forward, for descriptions; in reverse, for names
KIND, SCORE, ROLE = "mlp", "probability", "last subject"


def peaks(traces_by_split):
    """{"p2d": layer, "d2p": layer} where the MLPs have the largest mean effect at the last subject token.

    `traces_by_split` has one model's traces of one seed, by split. A fact counts once, with the mean over its steps
    under the leading corruption; the splits of a direction are pooled. {} unless facts of both directions were traced.
    """
    everything = [trace for traces in traces_by_split.values() for trace in traces]
    corruption = leading(name for trace in everything for name in trace.kinds)
    found = {}
    for direction in DIRECTIONS:
        traces = [
            trace
            for split, some in traces_by_split.items()
            for trace in some
            if SPLITS[split].direction == direction and KIND in trace.kinds.get(corruption, ())
        ]
        effects = np.array([_effect(trace, corruption) for trace in traces])  # (facts, L)
        if np.isnan(effects).all():
            return {}
        found[direction] = int(mean(effects).argmax())
    return found


def _effect(trace, corruption):
    """The effect (L,) of each layer's MLPs on one fact; NaN where no step has the role."""
    by_role = effects_by_role(trace, corruption, SCORE)[trace.kinds[corruption].index(KIND)]
    return mean(by_role[:, ROLES.index(ROLE)])


def read(path):
    """The peaks that a file holds; {} without a file."""
    return json.loads(Path(path).read_text()) if path else {}


def chosen_layers(choice, peaks, depth, model):
    """The layers that a configuration's `choice` means in a network of `depth` layers: all, peak, or a list."""
    peak = set(peaks.values())
    if choice == "all" or (choice == "peak" and not peak):
        return list(range(depth))
    if choice == "peak":
        return sorted(peak)
    if absent := [layer for layer in choice if layer >= depth]:
        raise UserError(f"layers has {absent[0]}; {model} has layers 0–{depth - 1}")
    return sorted(peak | set(choice))
