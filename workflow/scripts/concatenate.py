"""Put tables of one kind under each other."""

import pandas as pd

from workflow.reversal import files, reporting

with reporting.job(snakemake):
    files.write_table(pd.concat(map(pd.read_csv, snakemake.input)), snakemake.output[0])
