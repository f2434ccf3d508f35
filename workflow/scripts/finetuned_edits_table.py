"""Summarise all models' fine-tuned edits and gradients: how much transfers to the reverse direction."""

import pandas as pd

from reversal.common import files, jobs
from reversal.storage import transfer

with jobs.job(snakemake):
    for name, summarize in (("edits", transfer.summarize_edits), ("gradients", transfer.summarize_gradients)):
        table = pd.concat([pd.read_csv(file) for file in snakemake.input[name]])
        files.write_table(summarize(table), snakemake.output[name])
