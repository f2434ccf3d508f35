"""Keys and values on disk, and in pairs as they are compared. No network is needed."""

import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
import safetensors
import safetensors.numpy

from ..common.files import atomic

ARRAYS = ("key", "value", "original", "down")  # of an `Extraction`


class Extraction(NamedTuple):
    """The keys and values of n facts at one layer, and how the search went: arrays, or tensors on the CPU."""

    layer: int
    facts: list  # ids (n,)
    key: np.ndarray  # (n, mlp)
    value: np.ndarray  # (n, width) v*
    original: np.ndarray  # (n, width) z₀
    down: np.ndarray  # (width, mlp), the down-projection
    outcomes: pd.DataFrame  # one row a fact


def pair(forward, reverse, *, converged=True):
    """What `symmetry` compares, from the extractions of both questions about the same facts; and those facts' ids.

    `forward` asks for descriptions, `reverse` for names. Facts that did not converge in both are left out, unless
    `converged` is false: keys do not depend on it.
    """
    tables = [run.outcomes for run in (forward, reverse)]
    kept = [set(table.fact[table.converged] if converged else table.fact) for table in tables]
    facts = [fact for fact in forward.facts if fact in kept[0] & kept[1]]
    arrays = {}
    for name, run in (("forward", forward), ("reverse", reverse)):
        rows = [run.facts.index(fact) for fact in facts]
        for kind, vectors in (("key", run.key), ("value", run.value), ("output", run.original)):
            arrays[f"{kind}_{name}"] = np.asarray(vectors)[rows]
        arrays[f"down_{name}"] = np.asarray(run.down)
    return arrays, facts


def write(extractions, path):
    """Write the extractions of one model and split, one a layer, as safetensors with their outcomes; all or nothing."""
    arrays = {
        f"{found.layer}/{name}": np.ascontiguousarray(getattr(found, name)) for found in extractions for name in ARRAYS
    }
    outcomes = {str(found.layer): found.outcomes.to_dict("list") for found in extractions}
    with atomic(path) as file:
        file.write(safetensors.numpy.save(arrays, {"outcomes": json.dumps(outcomes)}))


class Stored(Mapping):
    """The extractions that `write` left, by layer; each is read when it is asked for.

    A large network's down-projections would fill gigabytes if all were held at once.
    """

    def __init__(self, path):
        self.path = path
        with safetensors.safe_open(path, framework="numpy") as file:
            tables = json.loads(file.metadata()["outcomes"])
        self.outcomes = {int(layer): pd.DataFrame(table) for layer, table in tables.items()}

    def __getitem__(self, layer):
        table = self.outcomes[layer]
        with safetensors.safe_open(self.path, framework="numpy") as file:
            arrays = [file.get_tensor(f"{layer}/{name}") for name in ARRAYS]
        return Extraction(layer, table.fact.tolist(), *arrays, table)

    def __iter__(self):
        return iter(self.outcomes)

    def __len__(self):
        return len(self.outcomes)
