"""Average traces over facts, and what was asked about time; tell how sure the maps are."""

from pathlib import Path

import numpy as np
import pandas as pd

from reversal.common import files, jobs
from reversal.tracing import files as trace_files
from reversal.tracing import tables, time_tables

with jobs.job(snakemake):
    traces, made = {}, {"effects": [], "maps": [], "time": [], "facts": []}
    rng = np.random.default_rng(snakemake.params.seed)
    for name, folder in zip(snakemake.params.trained, snakemake.input.traces, strict=True):
        model, seed = name.split("/seed_")
        splits = {split: Path(folder) / split for split in snakemake.params.splits}
        own = traces.setdefault(model, {})[int(seed)] = {split: trace_files.read(at) for split, at in splits.items()}
        made["effects"].append(tables.aggregate(own, model=model, seed=int(seed)))
        for split, place in splits.items():
            about = {"model": model, "seed": int(seed), "split": split}
            made["time"].append(time_tables.aggregate(trace_files.read_time(place), **about))
            made["facts"].append(tables.count_outcomes(trace_files.read_outcomes(place)).assign(**about))
    made["maps"] = [tables.maps(by_seed, model=model, rng=rng) for model, by_seed in traces.items()]
    for name, parts in made.items():
        table = pd.concat([part for part in parts if len(part)] or parts[:1])
        order = ["model", "seed", "split", "corruption", "outcome", "n"] if name == "facts" else list(table)
        files.write_table(table[order], snakemake.output[name])
