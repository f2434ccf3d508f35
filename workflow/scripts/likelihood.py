"""Make the table of the likelihood test of all models."""

import pandas as pd

from reversal.common import files, jobs
from reversal.recall import tables as recall_tables

with jobs.job(snakemake):
    comparisons = pd.concat(map(pd.read_csv, snakemake.input.comparisons))
    files.write_table(recall_tables.likelihood(comparisons), snakemake.output[0])
