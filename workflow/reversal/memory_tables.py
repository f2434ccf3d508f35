"""Symmetry of forward and reverse memories for all models: layer by layer, and where tracing says that MLPs peak."""

from pathlib import Path

import numpy as np
import pandas as pd

from . import keyvalue, symmetry, trace_tables
from .errors import UserError

PEAK = "peak"  # in place of a layer: each direction at the layer where its MLPs have the largest effect


def compare(folders, *, pairs, groups, traces, components, folds, permutations, draws, seed, job=None):
    """Tables of outcomes, symmetry, retrieval, spectra and pca for the extractions in `folders`, by "model/stage".

    `pairs` has the splits that ask forward (for descriptions) and in reverse about the same facts; `groups` the facts'
    training group. Symmetry's p-values are corrected by Holm within a model, stage and layer.
    """
    found = {"outcomes": [], "symmetry": [], "retrieval": [], "spectra": [], "pca": []}
    for name, folder in folders.items():
        model, stage = name.split("/")
        about = {"model": model, "seed": int(stage.removeprefix("seed_")) if stage != "base" else pd.NA, "stage": stage}
        runs = [[keyvalue.read(Path(folder) / f"{split}.safetensors") for split in pair] for pair in pairs]
        found["outcomes"] += [
            run.outcomes.assign(**about, split=split)
            for pair, sides in zip(pairs, runs, strict=True)
            for split, side in zip(pair, sides, strict=True)
            for run in side.values()
        ]
        for label, layers in _layers(runs, traces, model).items():
            arrays, names = _joined(runs, layers)
            kinds = [groups[name] for name in names]
            how = {"components": components, "folds": folds, "groups": kinds}
            where = {**about, "layer": label, "layer_forward": layers[0], "layer_reverse": layers[1]}
            rng = np.random.default_rng(seed)
            table = symmetry.compare_all(arrays, permutations=permutations, draws=draws, rng=rng, **how)
            found["symmetry"].append(table.assign(**where))
            curve = symmetry.retrieval_curve(arrays, rng=np.random.default_rng(seed), **how)
            found["retrieval"].append(curve.assign(**where))
            found["spectra"].append(symmetry.spectra(arrays).assign(**where))
            scatter = symmetry.pca_pairs(arrays).assign(**where)
            scatter["fact"] = [names[i] for i in scatter.fact]
            found["pca"].append(scatter)
            if job:
                job.say(f"{name}, layer {label}: {len(names)} facts")
    tables = {name: _front(pd.concat(parts, ignore_index=True)) for name, parts in found.items()}
    tables["symmetry"] = symmetry.correct(tables["symmetry"], family=("model", "stage", "layer"))
    return tables


def peaks(traces, model):
    """The layers where a model's MLPs have the largest effect, forward and in reverse; () if nothing was traced."""
    try:
        return tuple(trace_tables.peak_layer(traces, model=model, direction=direction) for direction in ("p2d", "d2p"))
    except UserError:
        return ()


def _layers(runs, traces, model):
    """{label: (layer forward, layer in reverse)}: each layer with itself, and the traced peaks with each other."""
    peak = peaks(traces, model)
    return ({PEAK: peak} if peak else {}) | {str(layer): (layer, layer) for layer in runs[0][0]}


def _joined(runs, layers):
    """The arrays of all pairs of splits under each other, and their facts' ids."""
    parts = [keyvalue.pair(forward[layers[0]], reverse[layers[1]]) for forward, reverse in runs]
    arrays = {
        name: parts[0][0][name] if name.startswith("down") else np.concatenate([part[name] for part, _ in parts])
        for name in parts[0][0]
    }
    return arrays, [fact for _, facts in parts for fact in facts]


def _front(table):
    first = [
        name for name in ("model", "seed", "stage", "split", "layer", "layer_forward", "layer_reverse") if name in table
    ]
    return table[[*first, *(name for name in table if name not in first)]]
