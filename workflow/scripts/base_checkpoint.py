"""Turn a checkpoint of LLaDA or Dream into the model that fine-tuning starts from."""

from reversal.common import jobs
from reversal.models.layouts import LAYOUTS

with jobs.job(snakemake):
    LAYOUTS[snakemake.params.kind].convert(snakemake.output[0], **snakemake.params.source)
