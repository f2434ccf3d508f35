"""Download the published data."""

from reversal.common import jobs
from reversal.data import berglund

with jobs.job(snakemake):
    berglund.download(snakemake.params.folder)
