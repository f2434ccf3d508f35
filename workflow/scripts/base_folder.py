"""Copy a local model folder as the model that fine-tuning starts from."""

from reversal.common import jobs
from reversal.models import folders

with jobs.job(snakemake):
    folders.copy(snakemake.params.folder, snakemake.output[0], causal=snakemake.params.causal)
