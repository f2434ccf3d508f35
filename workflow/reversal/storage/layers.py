"""Which layers to look at: all, some, or those where tracing finds that MLPs matter most."""

import json
from pathlib import Path

import numpy as np

from ..common import contrasts
from ..common.errors import UserError
from ..data.facts import ANY_SPLIT
from ..tracing.effects import at_first
from ..tracing.vocabulary import ROLES, leading

DIRECTIONS = ("p2d", "d2p")  # forward, for descriptions; in reverse, for names
KIND, ROLE = "mlp", "last subject"


def peaks(traces_by_split):
    """{"p2d": layer, "d2p": layer} where the MLPs have the largest mean effect at the last subject token.

    `traces_by_split` has one model's traces of one seed, by split: effects at t1 in nats, under the leading corruption;
    the splits of a direction are pooled. {} where tracing points nowhere: unless, in both directions, the largest
    effect is clearly above 0, by an interval that holds for all layers at once.
    """
    found = {direction: _largest(traces_by_split, direction, [ROLE]) for direction in DIRECTIONS}
    return {direction: one["layer"] for direction, one in found.items()} if all(found.values()) else {}


def site(traces_by_split):
    """{"layer": l, "role": r} of the prompt's token and layer whose MLP has the largest mean effect on descriptions.

    As in `peaks`, but of all roles of the prompt; {} where tracing points nowhere.
    """
    return _largest(traces_by_split, DIRECTIONS[0], ROLES[: ROLES.index("last prompt") + 1])


def _largest(traces_by_split, direction, roles):
    """{"layer", "role"} of the largest mean effect in one direction, of tokens with these `roles`; {} if nowhere."""
    corruption = leading(name for traces in traces_by_split.values() for trace in traces for name in trace.kinds)
    ours = [split for split in traces_by_split if ANY_SPLIT[split].direction == direction]
    effects, own = at_first([trace for split in ours for trace in traces_by_split[split]], corruption, KIND)
    if not own:
        return {}
    effects = effects[:, [ROLES.index(role) for role in roles]]
    peak = contrasts.peak(effects.reshape(len(own), -1), rng=np.random.default_rng(0))
    if peak.place == "nowhere":
        return {}
    role, layer = divmod(peak.cell, effects.shape[2])
    return {"layer": layer, "role": roles[role]}


def read(path):
    """The peaks that a file holds; {} without a file."""
    return {way: layer for way, layer in _read(path).items() if way in DIRECTIONS}


def read_site(path):
    """The site that a file holds; {} without one."""
    return _read(path).get("site", {})


def _read(path):
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


def value_layers(choice, peaks, depth, model):
    """The same for layers at which values are sought, which takes long: where tracing points nowhere, peak means 0."""
    return [0] if choice == "peak" and not peaks else chosen_layers(choice, peaks, depth, model)
