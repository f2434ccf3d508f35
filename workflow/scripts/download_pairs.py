"""Download the published pairs of children and parents."""

from reversal.common import jobs
from reversal.data import pairs

with jobs.job(snakemake):
    pairs.download(snakemake.output[0])
