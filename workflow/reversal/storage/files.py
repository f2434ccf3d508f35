"""Keys and values on disk, and in pairs as they are compared. No network is needed."""

import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
import safetensors
import safetensors.numpy

from ..common.files import atomic
from .vocabulary import side


class Extraction(NamedTuple):
    """The keys and values of n facts at one layer, and how the search went: tensors on the CPU."""

    layer: int
    facts: list  # ids (n,)
    key: np.ndarray  # (n, mlp)
    value: np.ndarray  # (n, width) v*
    original: np.ndarray  # (n, width) z₀
    outcomes: pd.DataFrame  # one row a fact


class Memory(NamedTuple):
    """What one question holds of n facts at one layer, in parts of templates."""

    facts: list  # ids (n,)
    arrays: Mapping  # {"key at subject": (P, n, mlp), …}, and "value" (P′, n, width) where it was sought
    converged: list  # facts (ids) of which every search for a value found one


def pair(forward, reverse, *, converged=True):
    """What `symmetry` compares, from the memories of both questions about the same facts; and those facts' ids.

    `forward` asks for descriptions, `reverse` for names. Facts that did not converge in both are left out, unless
    `converged` is false: then it is about what is read alone.
    """
    kept = set(forward.converged if converged else forward.facts)
    kept &= set(reverse.converged if converged else reverse.facts)
    facts = [fact for fact in forward.facts if fact in kept]
    arrays = {}
    for way, run in (("forward", forward), ("reverse", reverse)):
        rows = [run.facts.index(fact) for fact in facts]
        for name, vectors in run.arrays.items():
            if converged or name != "value":
                arrays[side(name, way)] = np.asarray(vectors)[:, rows]
    return arrays, facts


def write(facts, readings, searches, path):
    """Write what one model holds of one split's `facts`, as safetensors with the searches' outcomes; all or nothing.

    `readings` come from `extract.read`; `searches` has lists of `Extraction`, each with other templates.
    """
    arrays = {f"{layer}/{name}": vectors for layer, some in readings.items() for name, vectors in some.items()}
    for found in zip(*searches, strict=True):
        arrays[f"{found[0].layer}/value"] = np.stack([np.asarray(one.value) for one in found])
    outcomes = [one.outcomes for some in searches for one in some]
    table = pd.concat(outcomes).to_dict("list") if outcomes else {}
    about = {"facts": facts, "layers": list(readings), "outcomes": table}
    with atomic(path) as file:
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        file.write(safetensors.numpy.save(arrays, {"about": json.dumps(about)}))


class Stored(Mapping):
    """The `Memory` of each layer that `write` left; each is read when it is asked for.

    A large network's would fill gigabytes if all were held at once.
    """

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
        found = self.outcomes[self.outcomes.layer == layer] if len(self.outcomes) else pd.DataFrame()
        converged = found.groupby("fact", sort=False).converged.all() if len(found) else {}
        return Memory(self.facts, arrays, [fact for fact in self.facts if fact in converged and converged[fact]])

    def __iter__(self):
        return iter(self.layers)

    def __len__(self):
        return len(self.layers)
