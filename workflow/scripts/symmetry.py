"""Compare forward with reverse keys and values, of every model and of its base."""

import pandas as pd

from reversal.common import files, jobs
from reversal.data import facts
from reversal.memory import tables as memory_tables

with jobs.job(snakemake) as job:
    params, given = dict(snakemake.params), snakemake.input
    staged, pairs = params.pop("staged"), params.pop("pairs")
    groups = {fact.id: fact.group for fact in facts.read_facts(given.facts)}
    tables = memory_tables.compare(
        dict(zip(staged, given.extractions, strict=True)),
        pairs=pairs,
        groups=groups,
        traces=pd.read_csv(given.traces),
        job=job,
        **params,
    )
    for name, table in tables.items():
        files.write_table(table, snakemake.output[name])
