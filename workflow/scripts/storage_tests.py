"""Put all tests of shared storage on one scale, with their power on networks of known storage."""

import pandas as pd

from reversal.common import files, jobs
from reversal.storage import transfer

with jobs.job(snakemake):
    edits, gradients = (pd.read_csv(snakemake.input[name]) for name in ("edits", "gradients"))
    files.write_table(transfer.summarize_tests(edits, gradients, snakemake.params.stores), snakemake.output[0])
