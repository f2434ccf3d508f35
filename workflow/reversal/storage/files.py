"""Keys, values and activations on disk, and paired by fact across directions. No network is needed."""

import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
import safetensors
import safetensors.numpy

from ..common.files import atomic
from .vocabulary import DIRECTIONS, side_name


class Extraction(NamedTuple):
    """The keys and values of n facts at one layer, as tensors on the CPU, and how the optimisation went."""

    layer: int
    facts: list  # ids (n,)
    k_star: np.ndarray  # (n, mlp)
    v_star: np.ndarray  # (n, width)
    original: np.ndarray  # (n, width) the MLP's own output z₀, from which v* is optimised
    outcomes: pd.DataFrame  # one row per fact


class FactVectors(NamedTuple):
    """The vectors of n facts in one direction at one layer, with one part for each set of templates."""

    facts: list  # ids (n,)
    arrays: Mapping  # {"key at subject": (P, n, mlp), …}, and "value" (P′, n, width) where values were optimised
    searched: list  # ids of the facts whose values all converged and moved: others are the MLP's own output


def pair_directions(forward, reverse, *, values=DIRECTIONS):
    """The arrays of both directions, for `similarity`, over the same facts in the same order; and those facts' ids.

    `forward` and `reverse` are the `FactVectors` of prompts for descriptions and for names. `values` are the directions
    whose values are included: of facts whose search converged there and took steps. Without any, all facts are.
    """
    sides = dict(zip(DIRECTIONS, (forward, reverse), strict=True))
    included = set.intersection(*(set(side.searched if name in values else side.facts) for name, side in sides.items()))
    facts = [fact for fact in forward.facts if fact in included]
    arrays = {}
    for direction, vectors in sides.items():
        rows = [vectors.facts.index(fact) for fact in facts]
        for name, array in vectors.arrays.items():
            if direction in values or name != "value":
                arrays[side_name(name, direction)] = np.asarray(array)[:, rows]
    return arrays, facts


def write_vectors(facts, activations, extractions, path):
    """Write one model's vectors of one split's `facts` as safetensors, atomically, with the outcomes as metadata.

    `activations` come from `keyvalue.read_activations`; `extractions` has one list from `keyvalue.extract_keyvalues`
    for each set of templates.
    """
    arrays = {f"{layer}/{name}": array for layer, named in activations.items() for name, array in named.items()}
    for of_layer in zip(*extractions, strict=True):
        arrays[f"{of_layer[0].layer}/value"] = np.stack([np.asarray(extraction.v_star) for extraction in of_layer])
    outcomes = [extraction.outcomes for of_templates in extractions for extraction in of_templates]
    table = pd.concat(outcomes).to_dict("list") if outcomes else {}
    about = {"facts": facts, "layers": list(activations), "outcomes": table}
    with atomic(path) as file:
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        file.write(safetensors.numpy.save(arrays, {"about": json.dumps(about)}))


class StoredVectors(Mapping):
    """{layer: `FactVectors`} in a file of `write_vectors`, each read on access, because they can take gigabytes."""

    def __init__(self, path):
        self.path = path
        with safetensors.safe_open(path, framework="numpy") as file:
            about = json.loads(file.metadata()["about"])
            self.names = list(file.keys())
        self.facts, self.layers = about["facts"], about["layers"]
        self.outcomes = pd.DataFrame(about["outcomes"])

    def __getitem__(self, layer):
        if layer not in self.layers:
            raise KeyError(layer)
        with safetensors.safe_open(self.path, framework="numpy") as file:
            arrays = {name.split("/")[1]: file.get_tensor(name) for name in self.names if name.startswith(f"{layer}/")}
        return FactVectors(self.facts, arrays, self.find_searched(layer)[1])

    def find_searched(self, layer):
        """The facts whose values all converged at a layer, and of those, the ones whose values all moved."""
        if self.outcomes.empty:
            return [], []
        worst = self.outcomes[self.outcomes.layer == layer].groupby("fact")[["converged", "steps"]].min()
        converged = [fact for fact in self.facts if fact in worst.index and worst.converged[fact]]
        return converged, [fact for fact in converged if worst.steps[fact] > 0]

    def __iter__(self):
        return iter(self.layers)

    def __len__(self):
        return len(self.layers)
