"""Join the rank-one edits of all models in one table, which marks the layers where MLPs have the largest effect."""

import pandas as pd

from reversal.common import files, jobs
from reversal.storage import layers
from reversal.storage import tables as storage_tables

with jobs.job(snakemake):
    tables = [pd.read_csv(file) for file in snakemake.input.edits]
    peaks = [layers.read_peaks(file) for file in snakemake.input.peaks]
    files.write_table(storage_tables.join_edits(tables, peaks), snakemake.output[0])
