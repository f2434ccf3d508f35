"""Compare forward with reverse keys and values, of every model and of its base."""

from reversal.common import files, jobs
from reversal.data import facts
from reversal.storage import layers
from reversal.storage import tables as storage_tables

with jobs.job(snakemake) as job:
    params, given = dict(snakemake.params), snakemake.input
    staged, pairs = params.pop("staged"), params.pop("pairs")
    peaks = [layers.read(file) for file in given.peaks]
    tables = storage_tables.compare(
        dict(zip(staged, given.extractions, strict=True)),
        pairs=pairs,
        groups={fact.id: fact.group for fact in facts.read_facts(given.facts)},
        peaks=dict(zip(staged, peaks, strict=True)),
        statistics=storage_tables.Statistics(**params),
        job=job,
    )
    for name, table in tables.items():
        files.write_table(table, snakemake.output[name])
