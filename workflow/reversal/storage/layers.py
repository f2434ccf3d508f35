"""Choose the layers to study: all of them, a list, or those where causal tracing finds the largest effect of MLPs."""

import json
from pathlib import Path

import numpy as np

from ..common import contrasts
from ..common.errors import UserError
from ..data.facts import ANY_SPLIT
from ..tracing.files import collect_t1_effects
from ..tracing.vocabulary import ROLES, choose_corruption

DIRECTIONS = ("p2d", "d2p")  # forward (asks for descriptions), reverse (asks for names)
KIND, ROLE = "mlp", "last subject"


def find_peaks(traces_by_split):
    """{"p2d": layer, "d2p": layer}: where restoring MLP outputs at the last subject token has the largest mean effect.

    `traces_by_split` has one model's traces of one seed, {split: traces}. Effects are those at t1, in nats, under the
    leading corruption; the splits of one direction are pooled. The result is {} unless the largest effect exceeds 0 in
    both directions, by an interval that covers all layers simultaneously.
    """
    largest = {direction: _find_largest_effect(traces_by_split, direction, [ROLE]) for direction in DIRECTIONS}
    return {direction: site["layer"] for direction, site in largest.items()} if all(largest.values()) else {}


def find_site(traces_by_split):
    """{"layer", "role"}: the layer and the prompt token whose MLP output has the largest mean effect on descriptions.

    Like `find_peaks`, but over all roles of the prompt; {} if no effect exceeds 0.
    """
    return _find_largest_effect(traces_by_split, DIRECTIONS[0], ROLES[: ROLES.index("last prompt") + 1])


def _find_largest_effect(traces_by_split, direction, roles):
    """{"layer", "role"} of the largest mean effect in one direction among tokens with `roles`; {} if none exceeds 0."""
    all_traces = [trace for traces in traces_by_split.values() for trace in traces]
    corruption = choose_corruption(name for trace in all_traces for name in trace.kinds)
    splits = [split for split in traces_by_split if ANY_SPLIT[split].direction == direction]
    pooled = [trace for split in splits for trace in traces_by_split[split]]
    effects, traces = collect_t1_effects(pooled, corruption, KIND)
    if not traces:
        return {}
    effects = effects[:, [ROLES.index(role) for role in roles]]
    peak = contrasts.find_peak(effects.reshape(len(traces), -1), rng=np.random.default_rng(0))
    if peak.place == "nowhere":
        return {}
    role, layer = divmod(peak.cell, effects.shape[2])
    return {"layer": layer, "role": roles[role]}


def read_peaks(path):
    """The peaks in a file that scripts/peaks.py wrote; {} without a file."""
    return {direction: layer for direction, layer in _read(path).items() if direction in DIRECTIONS}


def read_site(path):
    """The site in a file that scripts/peaks.py wrote; {} without a file."""
    return _read(path).get("site", {})


def _read(path):
    return json.loads(Path(path).read_text()) if path else {}


def resolve_layers(choice, peaks, depth, model):
    """The layers that a configured `choice` (all, peak, or a list) means for a network of `depth` layers.

    The peaks are added to a list. Without peaks, peak means all layers.
    """
    peak_layers = set(peaks.values())
    if choice == "all" or (choice == "peak" and not peak_layers):
        return list(range(depth))
    if choice == "peak":
        return sorted(peak_layers)
    if absent := [layer for layer in choice if layer >= depth]:
        raise UserError(f"layers has {absent[0]}; {model} has layers 0–{depth - 1}")
    return sorted(peak_layers | set(choice))


def resolve_value_layers(choice, peaks, depth, model, site):
    """Like `resolve_layers`, but without peaks, peak means the layer of `site` (`find_site`), if that is where values
    go, at the last subject token; else none: there is no site at which to extract or edit."""
    if choice == "peak" and not peaks:
        return [site["layer"]] if site.get("role") == ROLE else []
    return resolve_layers(choice, peaks, depth, model)
