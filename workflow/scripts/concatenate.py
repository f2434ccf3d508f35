"""Concatenate tables of one kind."""

import pandas as pd

from reversal.common import files, jobs

with jobs.job(snakemake):
    files.write_table(pd.concat(map(pd.read_csv, snakemake.input.tables)), snakemake.output[0])
