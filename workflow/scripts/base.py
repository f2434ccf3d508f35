"""Make the model that fine-tuning starts from, from random weights or the hub."""

from reversal.common import jobs
from reversal.training import bases

with jobs.job(snakemake):
    params, output = snakemake.params, snakemake.output[0]
    match snakemake.rule.rpartition("_")[-1]:  # a workflow that imports this one may add a prefix
        case "scratch":
            bases.from_scratch(snakemake.input.rows, output, causal=params.causal, shape=params.network, seed=0)
        case "hub":
            bases.from_hub(output, **params.hub)
