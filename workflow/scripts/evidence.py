"""One memory or two: what four kinds of evidence say, on one scale."""

import pandas as pd

from reversal.common import files, jobs
from reversal.storage import evidence

with jobs.job(snakemake):
    given = snakemake.input
    tables = [pd.read_csv(file) for file in (given.rewriting, given.gradients, given.symmetry, given.edits)]
    files.write_table(evidence.summary(*tables), snakemake.output[0])
