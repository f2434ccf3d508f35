"""Turn a published diffusion checkpoint into the model that fine-tuning starts from."""

from reversal.common import jobs
from reversal.models import layouts

with jobs.job(snakemake):
    layouts.convert(snakemake.output[0], **snakemake.params.source)
