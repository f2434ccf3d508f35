"""Compare forward with reverse keys and values, for every model and its base."""

from reversal.common import files, jobs
from reversal.data import facts
from reversal.storage import layers
from reversal.storage import tables as storage_tables

with jobs.job(snakemake) as job:
    params, inputs = dict(snakemake.params), snakemake.input
    staged, pairs = params.pop("staged"), params.pop("pairs")
    peaks = [layers.read_peaks(file) for file in inputs.peaks]
    tables = storage_tables.compare(
        dict(zip(staged, inputs.extractions, strict=True)),
        pairs=pairs,
        groups={fact.id: fact.group for fact in facts.read_facts(inputs.facts)},
        peaks=dict(zip(staged, peaks, strict=True)),
        statistics=storage_tables.Statistics(**params),
        job=job,
    )
    for name, table in tables.items():
        files.write_table(table, snakemake.output[name])
