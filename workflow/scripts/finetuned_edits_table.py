"""What forward and reverse share, of all models: tables of rewritten facts and of gradients."""

import pandas as pd

from reversal.common import files, jobs
from reversal.storage import transfer

with jobs.job(snakemake):
    for name, make in (("lessons", transfer.rewriting), ("gradients", transfer.gradients)):
        together = pd.concat([pd.read_csv(file) for file in snakemake.input[name]])
        files.write_table(make(together), snakemake.output[name])
