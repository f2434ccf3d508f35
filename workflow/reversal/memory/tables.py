"""Tables of all models' memories: their symmetry, layer by layer and where tracing says that MLPs peak; their edits."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from . import files as memory_files
from . import symmetry
from .vocabulary import BASE, BEYOND, COMPARISONS, KEYS_ALONE, PAIRS, PEAK

PAIRS_OF = {  # comparisons that need values, and those that do not
    "value": [pair for pair in PAIRS if pair not in KEYS_ALONE],
    "key": KEYS_ALONE,
}


@dataclass(frozen=True)
class Statistics:
    """How forward and reverse are compared: the names and meanings of `symmetry` in the configuration."""

    components: int  # principal components for retrieval and subspaces
    folds: int  # in which facts are held out for retrieval
    permutations: int  # of the named tests; others take a tenth
    seed: int


def compare(folders, *, pairs, groups, peaks, statistics, job=None):
    """Tables of outcomes, symmetry, retrieval, spectra and pca for the extractions in `folders`, by "model/stage".

    `pairs` has the splits that ask forward (for descriptions) and in reverse about the same facts; `groups` the facts'
    training group; `peaks`, by "model/stage", what `layers.peaks` found. Values are compared where the search for them
    converged both ways, keys among themselves for all facts. Where a model has a base, what the named tests find beyond
    it stands at the peak, on the facts that converged in both.
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
        for label, layers in _layers(runs, peaks[name]).items():
            where = {**about, **_where(label, *layers)}
            both = [(forward[layers[0]], reverse[layers[1]]) for forward, reverse in runs]
            for kind in PAIRS_OF:
                arrays, facts = _joined(both, converged=kind == "value")
                for table, rows in _compare(kind, arrays, facts, groups, statistics).items():
                    found[table].append(rows.assign(**where))
                if job:
                    job.say(f"{name}, layer {label}: {kind}s of {len(facts)} facts")
        if peaks[name] and stage != BASE and f"{model}/{BASE}" in folders:
            gained = _beyond(folder, folders[f"{model}/{BASE}"], pairs, peaks[name])
            found["symmetry"].append(gained.assign(**about, **_where(PEAK, peaks[name]["p2d"], peaks[name]["d2p"])))
    tables = {name: _front(pd.concat(parts, ignore_index=True)) for name, parts in found.items()}
    tables["symmetry"] = symmetry.over_layers(tables["symmetry"])
    return tables


def _beyond(folder, base, pairs, peak):
    """What the named tests find in `folder` beyond the `base`, at the same layers and of the same facts."""
    arrays, kept = [], []
    for place in (folder, base):
        runs = [[memory_files.Stored(Path(place) / f"{split}.safetensors") for split in pair] for pair in pairs]
        if any(layer not in side for run in runs for side, layer in zip(run, (peak["p2d"], peak["d2p"]), strict=True)):
            return pd.DataFrame()
        joined, facts = _joined([(run[0][peak["p2d"]], run[1][peak["d2p"]]) for run in runs], converged=True)
        arrays.append(joined)
        kept.append(facts)
    rows = [[facts.index(fact) for fact in kept[0] if fact in set(kept[0]) & set(kept[1])] for facts in kept]
    some = [
        {name: array if name.startswith("down") else array[own] for name, array in one.items()}
        for one, own in zip(arrays, rows, strict=True)
    ]
    return symmetry.beyond(*some).assign(statistic=BEYOND)


def _where(label, forward, reverse):
    return {"layer": label, "layer_forward": forward, "layer_reverse": reverse}


def _compare(kind, arrays, facts, groups, statistics):
    """Tables of the comparisons of a `kind` between `arrays` of the `facts`."""
    compared = [pair for pair in PAIRS_OF[kind] if pair in COMPARISONS]
    how = {"components": statistics.components, "folds": statistics.folds, "groups": [groups[fact] for fact in facts]}
    spectra, scatter = symmetry.spectra(arrays), symmetry.pca_pairs(arrays, pairs=compared)
    rng, same = (np.random.default_rng(statistics.seed) for _ in range(2))
    return {
        "symmetry": symmetry.compare_all(
            arrays, rng=rng, pairs=PAIRS_OF[kind], permutations=statistics.permutations, **how
        ),
        "retrieval": symmetry.retrieval_curve(arrays, rng=same, pairs=compared, **how),
        "spectra": spectra[spectra.space.str.contains(kind)],
        "pca": scatter.assign(fact=[facts[i] for i in scatter.fact]),
    }


def _layers(runs, peaks):
    """{label: (layer forward, layer in reverse)}: each layer with itself, and the traced peaks with each other."""
    peak = {PEAK: (peaks["p2d"], peaks["d2p"])} if peaks else {}
    return peak | {str(layer): (layer, layer) for layer in runs[0][0]}


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


def join_edits(tables, peaks):
    """The tables of edits under each other, each with the column `peak`: whether its layer is where MLPs matter most.

    `peaks` has for each table what `layers.peaks` found; the peak is that of the forward question. Without one it is
    the table's lowest layer.
    """
    joined = []
    for table, found in zip(tables, peaks, strict=True):
        table = table.copy()
        table.insert(table.columns.get_loc("layer") + 1, PEAK, table.layer == found.get("p2d", table.layer.min()))
        joined.append(table)
    return pd.concat(joined)
