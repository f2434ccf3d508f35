"""Give the base as it is the place of a fine-tuned model."""

from reversal.common import jobs
from reversal.models import folders

with jobs.job(snakemake):
    folders.link(snakemake.input.base, snakemake.output[0])
