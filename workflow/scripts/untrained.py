"""Use the base itself, without fine-tuning, as a model of the study."""

from reversal.common import jobs
from reversal.models import folders

with jobs.job(snakemake):
    folders.link(snakemake.input.base, snakemake.output[0])
