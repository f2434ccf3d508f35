"""Turn a checkpoint of LLaDA or Dream into the model that fine-tuning starts from."""

from reversal.common import jobs
from reversal.models import dream, llada

with jobs.job(snakemake):
    kind = {"llada": llada, "dream": dream}[snakemake.params.kind]
    kind.convert(snakemake.output[0], **snakemake.params.source)
