"""Tables of all models' memories: their symmetry, layer by layer and where tracing says that MLPs peak; their edits."""

from dataclasses import dataclass
from pathlib import Path

import joblib
import numpy as np
import pandas as pd

from . import files as storage_files
from . import similarity
from .vocabulary import BASE, BEYOND, CONCEPTS, PAIRS, PEAK, READ_ALONE, STATES

PAIRS_OF = {  # comparisons that need values, and those that do not
    "value": [pair for pair in PAIRS if pair not in READ_ALONE],
    "read": READ_ALONE,
}
SCATTERED = [*CONCEPTS.values(), *STATES.values()]


@dataclass(frozen=True)
class Statistics:
    """How forward and reverse are compared: the names and meanings of `symmetry` in the configuration."""

    components: int  # principal components for retrieval and subspaces
    folds: int  # in which facts are held out for retrieval
    permutations: int  # of the named tests; others take a fiftieth
    seed: int


def compare(folders, *, pairs, groups, peaks, statistics, job=None):
    """Tables of outcomes, symmetry, spectra and pca for what `folders` hold, by "model/stage".

    `pairs` has the splits that ask forward (for descriptions) and in reverse about the same facts; `groups` the facts'
    training group; `peaks`, by "model/stage", what `layers.peaks` found. Values are compared where they were sought
    and found both ways, all else for all facts; where none were sought, in `brief`. Where a model has a base, what
    states have in common beyond it is told.
    """
    found = {"outcomes": [], "symmetry": [], "spectra": [], "pca": []}
    folders = {name: _stored(folder, pairs) for name, folder in folders.items()}
    for name, runs in folders.items():
        found["outcomes"] += [
            side.outcomes.assign(**_about(name), split=split)
            for pair, sides in zip(pairs, runs, strict=True)
            for split, side in zip(pair, sides, strict=True)
        ]
    # Matrices are so small that a second thread costs more than it gives; so each process has one.
    processes = job.threads if job else 1
    with joblib.parallel_config("loky", n_jobs=processes, inner_max_num_threads=1):
        compared = joblib.Parallel(return_as="generator")(
            joblib.delayed(_compare)(*task, groups, statistics) for task in _tasks(folders, peaks)
        )
        for said, tables in compared:
            for table, rows in tables.items():
                found[table].append(rows)
            if job:
                job.say(said)
    if processes > 1:
        joblib.externals.loky.get_reusable_executor().shutdown()  # so that the CPU time of its processes is told
    for name, runs in folders.items():
        model, stage = name.split("/")
        if stage != BASE and f"{model}/{BASE}" in folders:
            layers = _layers(runs, peaks[name])
            found["symmetry"] += _beyond(runs, folders[f"{model}/{BASE}"], layers, _about(name))
    tables = {name: _front(pd.concat(parts, ignore_index=True)) for name, parts in found.items()}
    tables["symmetry"] = similarity.over_layers(tables["symmetry"])
    return tables


def _stored(folder, pairs):
    return [[storage_files.Stored(Path(folder) / f"{split}.safetensors") for split in pair] for pair in pairs]


def _about(name):
    model, stage = name.split("/")
    return {"model": model, "seed": int(stage.removeprefix("seed_")) if stage != BASE else pd.NA, "stage": stage}


def _tasks(folders, peaks):
    """What `_compare` takes, for each layer of each of the `folders`."""
    for name, runs in folders.items():
        for label, layers in _layers(runs, peaks[name]).items():
            both = [(forward[layers[0]], reverse[layers[1]]) for forward, reverse in runs]
            sought = all("value" in side.arrays for pair in both for side in pair)
            for kind in PAIRS_OF if sought else ("read",):
                yield name, _where(label, *layers), kind, *_joined(both, converged=kind == "value"), not sought


def _beyond(runs, before, layers, about):
    """What states have in common after fine-tuning beyond what they had `before`, by layer, of the same facts."""
    for label, (ahead, back) in layers.items():
        if all(ahead in run[0] and back in run[1] for run in before):
            arrays = [
                _joined([(run[0][ahead], run[1][back]) for run in some], converged=False) for some in (runs, before)
            ]
            gained = similarity.beyond(*(own for own, _ in arrays), pairs=list(STATES.values()))
            yield gained.assign(statistic=BEYOND, **about, **_where(label, ahead, back))


def _where(label, forward, reverse):
    return {"layer": label, "layer_forward": forward, "layer_reverse": reverse}


def _compare(name, where, kind, arrays, facts, brief, groups, statistics):
    """What is compared, in a line, and tables of the comparisons of a `kind` between `arrays` of the `facts`."""
    rng = np.random.default_rng(statistics.seed)
    how = {"components": statistics.components, "folds": statistics.folds, "permutations": statistics.permutations}
    how |= {"groups": [groups[fact] for fact in facts], "brief": brief}
    compared = similarity.compare_all(arrays, rng=rng, pairs=PAIRS_OF[kind], **how)
    own = {name: array for name, array in arrays.items() if ("value" in name) == (kind == "value")}
    scatter = similarity.pca_pairs(
        arrays, pairs=[] if brief else [pair for pair in SCATTERED if pair in PAIRS_OF[kind]]
    )
    tables = {
        "symmetry": compared,
        "spectra": similarity.spectra({} if brief else own),
        "pca": scatter.assign(fact=[facts[i] for i in scatter.fact]),
    }
    said = f"{name}, layer {where['layer']}: {kind}s of {len(facts)} facts"
    return said, {table: rows.assign(**_about(name), **where) for table, rows in tables.items()}


def _layers(runs, peaks):
    """{label: (layer forward, layer in reverse)}: each layer with itself, and the traced peaks with each other."""
    peak = {PEAK: (peaks["p2d"], peaks["d2p"])} if peaks else {}
    return peak | {str(layer): (layer, layer) for layer in runs[0][0]}


def _joined(pairs, *, converged):
    """The arrays of all pairs of memories, one's facts after the other's, and their ids; of all or the converged ones.

    Groups may have been asked with other numbers of templates: as many parts are kept as all have.
    """
    found = [storage_files.pair(*pair, converged=converged) for pair in pairs]
    arrays = {}
    for name in found[0][0]:
        parts = min(len(some[name]) for some, _ in found)
        arrays[name] = np.concatenate([some[name][:parts] for some, _ in found], axis=1)
    return arrays, [fact for _, facts in found for fact in facts]


def _front(table):
    first = [
        name for name in ("model", "seed", "stage", "split", "layer", "layer_forward", "layer_reverse") if name in table
    ]
    return table[[*first, *(name for name in table if name not in first)]]


def join_edits(tables, peaks):
    """The tables of edits under each other, each with the column `peak`: whether it is of the leading edits.

    Those are at the last subject token, in the layer where MLPs matter most by the forward question's of `peaks`, which
    has for each table what `layers.peaks` found. Without one it is the table's lowest layer.
    """
    joined = []
    for table, found in zip(tables, peaks, strict=True):
        table = table.copy()
        plain = table.how == "layer"
        lead = table.layer == found.get("p2d", table.layer[plain].min())
        table.insert(table.columns.get_loc("layer") + 1, PEAK, plain & lead)
        joined.append(table)
    return pd.concat(joined)
