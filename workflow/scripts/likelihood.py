"""The likelihood test of all models."""

import numpy as np
import pandas as pd

from workflow.reversal import files, reporting, scoring

with reporting.job(snakemake):
    comparisons = pd.concat(map(pd.read_csv, snakemake.input.comparisons))
    rng = np.random.default_rng(snakemake.params.seed)
    table = scoring.likelihood(comparisons, draws=snakemake.params.bootstrap_draws, rng=rng)
    files.write_table(table, snakemake.output[0])
