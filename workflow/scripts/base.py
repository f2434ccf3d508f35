"""Make the model that fine-tuning starts from, from random weights or the hub."""

from reversal.common import jobs
from reversal.training import bases

with jobs.job(snakemake):
    given, params, output = snakemake.input, snakemake.params, snakemake.output[0]
    match snakemake.rule.rpartition("_")[-1]:  # a workflow that imports this one may put a name before
        case "scratch":
            bases.scratch(given.rows, output, causal=params.causal, shape=params.network, seed=0)
        case "hub":
            bases.from_hub(output, **params.hub)
