"""Average traces over facts."""

from pathlib import Path

import pandas as pd

from reversal.common import files, jobs
from reversal.tracing import files as trace_files
from reversal.tracing import tables as trace_tables

with jobs.job(snakemake):
    effects, counts = [], []
    for name, folder in zip(snakemake.params.trained, snakemake.input.traces, strict=True):
        model, seed = name.split("/seed_")
        for split in snakemake.params.splits:
            place, about = Path(folder) / split, {"model": model, "seed": int(seed), "split": split}
            effects.append(trace_tables.aggregate(trace_files.read(place), **about))
            counts.append(trace_tables.count_outcomes(trace_files.read_outcomes(place)).assign(**about))
    files.write_table(pd.concat([table for table in effects if len(table)] or effects[:1]), snakemake.output.effects)
    files.write_table(
        pd.concat(counts)[["model", "seed", "split", "corruption", "outcome", "n"]], snakemake.output.facts
    )
