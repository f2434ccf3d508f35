"""Tables of all models: the symmetry of their vectors, by layer and at the traced peaks; and their rank-one edits."""

from dataclasses import dataclass
from pathlib import Path

import joblib
import numpy as np
import pandas as pd

from . import files as storage_files
from . import similarity
from .vocabulary import (
    BASE,
    DIRECTIONS,
    PAIRS,
    PEAK,
    REFERENCES,
    SEARCHED,
    SHOWN_COMPARISONS,
    WITHOUT_VALUES,
)

PAIRS_OF = {"value": [pair for pair in PAIRS if pair not in WITHOUT_VALUES], "activation": WITHOUT_VALUES}
FIRST_COLUMNS = ("model", "seed", "stage", "split", "layer")


@dataclass(frozen=True)
class Statistics:
    """How forward and reverse are compared: the names and meanings of `symmetry` in the configuration."""

    components: int  # dimensions of the subspaces compared
    permutations: int  # of the primary tests; exploratory ones take a fiftieth
    seed: int


def compare(folders, *, pairs, groups, peaks, statistics, job=None):
    """{"outcomes", "symmetry", "spectra", "pca": table} of the vectors in `folders`, {"model/stage": folder}.

    `pairs` has the splits that ask forward (for descriptions) and in reverse about the same facts; `groups`, {fact:
    its training group}; `peaks`, by "model/stage", the result of `layers.find_peaks`. Values are compared for facts
    whose search converged and took steps, in directions where most did; activations for all facts. The table also has
    the share of values whose search took steps.
    """
    tables = {"outcomes": [], "symmetry": [], "spectra": [], "pca": []}
    tasks, searched = [], []
    for name, folder in folders.items():
        run = _describe_run(name)
        stored = [
            [storage_files.StoredVectors(Path(folder) / f"{split}.safetensors") for split in two] for two in pairs
        ]
        for splits, sides in zip(pairs, stored, strict=True):
            tables["outcomes"] += [
                side.outcomes.assign(**run, split=split) for split, side in zip(splits, sides, strict=True)
            ]
        for label, layers in _label_layers(stored, peaks[name]).items():
            shares = _share_searched(stored, layers)
            values = [direction for direction, (share, n) in shares.items() if n and share >= 0.5]
            columns = run | {"layer": label}
            tasks += [(columns, kind, stored, layers, values) for kind in PAIRS_OF if values or kind == "activation"]
            rows = [
                columns | {"comparison": pair, "statistic": SEARCHED, "value": share, "n": n}
                for pair, (share, n) in zip(REFERENCES, shares.values(), strict=True)
                if n
            ]
            searched.append(pd.DataFrame(rows))
    # The matrices are so small that a second thread costs more than it saves, so each process has one.
    processes = job.threads if job else 1
    with joblib.parallel_config("loky", n_jobs=processes, inner_max_num_threads=1):
        results = joblib.Parallel(return_as="generator")(
            joblib.delayed(_compare_layer)(*task, groups, statistics) for task in tasks
        )
        for message, layer_tables in results:
            for name, rows in layer_tables.items():
                tables[name].append(rows)
            if job:
                job.log_line(message)
    if processes > 1:
        joblib.externals.loky.get_reusable_executor().shutdown()  # so that the CPU time of its processes is counted
    tables["symmetry"] += searched
    tables = {name: _order_columns(pd.concat(parts, ignore_index=True)) for name, parts in tables.items()}
    tables["symmetry"] = similarity.adjust_for_layers(tables["symmetry"])
    return tables


def _describe_run(name):
    """The columns model, seed and stage of "model/stage"."""
    model, stage = name.split("/")
    return {"model": model, "seed": int(stage.removeprefix("seed_")) if stage != BASE else pd.NA, "stage": stage}


def _share_searched(stored, layers):
    """{direction: (share of its converged values whose search took steps, their number)} at the layer of each."""
    shares = {}
    for i, (direction, layer) in enumerate(zip(DIRECTIONS, layers, strict=True)):
        found = [sides[i].find_searched(layer) for sides in stored]
        converged, searched = (sum(len(facts[part]) for facts in found) for part in (0, 1))
        shares[direction] = searched / converged if converged else np.nan, converged
    return shares


def _compare_layer(columns, kind, stored, layers, values, groups, statistics):
    """A log message, and the tables of the comparisons of one `kind` between the vectors of one layer of a run."""
    arrays, facts = _concatenate(stored, layers, values=values if kind == "value" else ())
    compared = similarity.compare_all(
        arrays,
        pairs=PAIRS_OF[kind],
        groups=[groups[fact] for fact in facts],
        components=statistics.components,
        permutations=statistics.permutations,
        rng=np.random.default_rng(statistics.seed),
    )
    shown = [pair for pair in SHOWN_COMPARISONS if pair in PAIRS_OF[kind]]
    sides = {side for pair in shown for side in PAIRS[pair] if ("value" in side) == (kind == "value")} & set(arrays)
    scatter = similarity.pca_pairs(arrays, pairs=shown)
    tables = {
        "symmetry": compared,
        "spectra": similarity.spectra({side: arrays[side] for side in sorted(sides)}),
        "pca": scatter.assign(fact=[facts[i] for i in scatter.fact]),
    }
    message = f"{columns['model']}/{columns['stage']}, layer {columns['layer']}: {kind}s of {len(facts)} facts"
    return message, {table: rows.assign(**columns) for table, rows in tables.items()}


def _label_layers(stored, peaks):
    """{label: (forward layer, reverse layer)}: each layer with itself, and the traced peaks with each other."""
    peak = {PEAK: (peaks["p2d"], peaks["d2p"])} if peaks else {}
    return peak | {str(layer): (layer, layer) for layer in stored[0][0]}


def _concatenate(stored, layers, *, values):
    """The arrays of all pairs of splits, each direction at its layer, one pair's facts after the other's; and the ids.

    Groups may have different numbers of templates: as many parts are used as all of them have.
    """
    pairs = [[side[layer] for side, layer in zip(sides, layers, strict=True)] for sides in stored]
    paired = [storage_files.pair_directions(*pair, values=values) for pair in pairs]
    arrays = {}
    for name in paired[0][0]:
        parts = min(len(group[name]) for group, _ in paired)
        arrays[name] = np.concatenate([group[name][:parts] for group, _ in paired], axis=1)
    return arrays, [fact for _, facts in paired for fact in facts]


def _order_columns(table):
    first = [name for name in FIRST_COLUMNS if name in table]
    return table[[*first, *(name for name in table if name not in first)]]


def join_edits(tables, peaks):
    """Concatenate tables of rank-one edits, each with a column `peak`: whether a row is of the main edits.

    The main edits are at the last subject token, in the forward layer of `peaks`, which has the result of
    `layers.find_peaks` for each table; without one, in the table's lowest layer.
    """
    joined = []
    for table, table_peaks in zip(tables, peaks, strict=True):
        table = table.copy()  # empty for a model without a site
        is_layer_site = table.site == "layer"
        is_main_layer = table.layer == table_peaks.get("p2d", table.layer[is_layer_site].min())
        table.insert(table.columns.get_loc("layer") + 1, PEAK, is_layer_site & is_main_layer)
        joined.append(table)
    return pd.concat(joined)
