"""Shared or separate storage: put four kinds of evidence on one scale."""

import pandas as pd

from reversal.common import files, jobs
from reversal.storage import evidence

with jobs.job(snakemake):
    tables = [pd.read_csv(snakemake.input[name]) for name in ("finetuned", "gradients", "symmetry", "rank_one")]
    files.write_table(evidence.summarize_evidence(*tables), snakemake.output[0])
