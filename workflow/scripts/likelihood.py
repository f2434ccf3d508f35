"""The likelihood test of all models."""

import numpy as np
import pandas as pd

from reversal.common import files, jobs
from reversal.recall import tables as recall_tables

with jobs.job(snakemake):
    comparisons = pd.concat(map(pd.read_csv, snakemake.input.comparisons))
    rng = np.random.default_rng(snakemake.params.seed)
    table = recall_tables.likelihood(comparisons, draws=snakemake.params.bootstrap_draws, rng=rng)
    files.write_table(table, snakemake.output[0])
