"""Symmetry of forward and reverse memories for all models: layer by layer, and where tracing says that MLPs peak."""

from pathlib import Path

import numpy as np
import pandas as pd

from ..common.errors import UserError
from ..tracing import tables as trace_tables
from . import files as memory_files
from . import symmetry

PAIRS_OF = {  # comparisons that need values, and those that do not
    "value": [pair for pair in symmetry.PAIRS if pair not in symmetry.KEYS_ALONE],
    "key": symmetry.KEYS_ALONE,
}
PEAK = "peak"  # in place of a layer: each direction at the layer where its MLPs have the largest effect


def compare(folders, *, pairs, groups, traces, components, folds, permutations, draws, seed, job=None):
    """Tables of outcomes, symmetry, retrieval, spectra and pca for the extractions in `folders`, by "model/stage".

    `pairs` has the splits that ask forward (for descriptions) and in reverse about the same facts; `groups` the facts'
    training group. Values are compared where the search for them converged both ways, keys among themselves for all
    facts. Symmetry's p-values are corrected by Holm within a model, stage and layer.
    """
    found = {"outcomes": [], "symmetry": [], "retrieval": [], "spectra": [], "pca": []}
    for name, folder in folders.items():
        model, stage = name.split("/")
        about = {"model": model, "seed": int(stage.removeprefix("seed_")) if stage != "base" else pd.NA, "stage": stage}
        runs = [[memory_files.Stored(Path(folder) / f"{split}.safetensors") for split in pair] for pair in pairs]
        found["outcomes"] += [
            table.assign(**about, split=split)
            for pair, sides in zip(pairs, runs, strict=True)
            for split, side in zip(pair, sides, strict=True)
            for table in side.outcomes.values()
        ]
        for label, layers in _layers(runs, traces, model).items():
            where = {**about, "layer": label, "layer_forward": layers[0], "layer_reverse": layers[1]}
            both = [(forward[layers[0]], reverse[layers[1]]) for forward, reverse in runs]
            for kind in PAIRS_OF:
                arrays, names = _joined(both, converged=kind == "value")
                how = {"components": components, "folds": folds, "groups": [groups[name] for name in names]}
                compared = _compare(kind, arrays, names, permutations=permutations, draws=draws, seed=seed, **how)
                for table, rows in compared.items():
                    found[table].append(rows.assign(**where))
                if job:
                    job.say(f"{name}, layer {label}: {kind}s of {len(names)} facts")
    tables = {name: _front(pd.concat(parts, ignore_index=True)) for name, parts in found.items()}
    tables["symmetry"] = symmetry.correct(tables["symmetry"], family=("model", "stage", "layer"))
    return tables


def _compare(kind, arrays, names, *, permutations, draws, seed, **how):
    """Tables of the comparisons of a `kind` between `arrays` of the facts `names`."""
    compared = [pair for pair in PAIRS_OF[kind] if pair in symmetry.COMPARISONS]
    spectra, scatter = symmetry.spectra(arrays), symmetry.pca_pairs(arrays, pairs=compared)
    rng, same = np.random.default_rng(seed), np.random.default_rng(seed)
    return {
        "symmetry": symmetry.compare_all(
            arrays, permutations=permutations, draws=draws, rng=rng, pairs=PAIRS_OF[kind], **how
        ),
        "retrieval": symmetry.retrieval_curve(arrays, rng=same, pairs=compared, **how),
        "spectra": spectra[spectra.space.str.contains(kind)],
        "pca": scatter.assign(fact=[names[i] for i in scatter.fact]),
    }


def peaks(traces, model):
    """The layers where a model's MLPs have the largest effect, forward and in reverse; () if nothing was traced."""
    try:
        return tuple(trace_tables.peak_layer(traces, model=model, direction=direction) for direction in ("p2d", "d2p"))
    except UserError:
        return ()


def chosen_layers(choice, traces, model, depth):
    """The layers that a configuration's `choice` means in a network of `depth` layers: all, peak, or a list."""
    peak = set(peaks(traces, model))
    if choice == "all" or (choice == "peak" and not peak):
        return list(range(depth))
    if choice == "peak":
        return sorted(peak)
    if absent := [layer for layer in choice if layer >= depth]:
        raise UserError(f"layers has {absent[0]}; {model} has layers 0–{depth - 1}")
    return sorted(peak | set(choice))


def _layers(runs, traces, model):
    """{label: (layer forward, layer in reverse)}: each layer with itself, and the traced peaks with each other."""
    peak = peaks(traces, model)
    return ({PEAK: peak} if peak else {}) | {str(layer): (layer, layer) for layer in runs[0][0]}


def _joined(pairs, *, converged):
    """The arrays of all pairs of extractions under each other, and their facts' ids; of all or the converged ones."""
    parts = [memory_files.pair(*pair, converged=converged) for pair in pairs]
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
