"""Average traces and timing over facts, and compare the maps of effects."""

from pathlib import Path

import numpy as np
import pandas as pd

from reversal.common import files, jobs
from reversal.tracing import files as trace_files
from reversal.tracing import readout_tables, tables, time_tables

with jobs.job(snakemake):
    traces, parts = {}, {name: [] for name in ("effects", "maps", "time", "lens", "heads", "attribution", "facts")}
    averages = {"time": time_tables.aggregate, "lens": readout_tables.average_lens}
    averages |= {"heads": readout_tables.average_heads, "attribution": readout_tables.average_attribution}
    rng = np.random.default_rng(snakemake.params.seed)
    for name, root in zip(snakemake.params.trained, snakemake.input.traces, strict=True):
        model, seed = name.split("/seed_")
        folders = {split: Path(root) / split for split in snakemake.params.splits}
        by_split = {split: trace_files.read(folder) for split, folder in folders.items()}
        traces.setdefault(model, {})[int(seed)] = by_split
        parts["effects"].append(tables.aggregate(by_split, model=model, seed=int(seed)))
        for split, folder in folders.items():
            labels = {"model": model, "seed": int(seed), "split": split}
            for name, average in averages.items():
                parts[name].append(average(trace_files.read_table(folder, name), **labels))
            outcomes = trace_files.read_table(folder, "outcomes")
            parts["facts"].append(tables.count_outcomes(outcomes).assign(**labels))
    parts["maps"] = [tables.tabulate_maps(by_seed, model=model, rng=rng) for model, by_seed in traces.items()]
    for name, tables_of_name in parts.items():
        table = pd.concat([part for part in tables_of_name if len(part)] or tables_of_name[:1])
        order = ["model", "seed", "split", "corruption", "outcome", "n"] if name == "facts" else list(table)
        files.write_table(table[order], snakemake.output[name])
