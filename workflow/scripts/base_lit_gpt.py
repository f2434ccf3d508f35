"""Turn an SMDM checkpoint into the model that fine-tuning starts from."""

from reversal.common import jobs
from reversal.models import smdm

with jobs.job(snakemake):
    smdm.convert(snakemake.output[0], causal=snakemake.params.causal, **snakemake.params.lit_gpt)
