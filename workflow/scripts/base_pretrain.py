"""Pretrain the model that fine-tuning starts from."""

from reversal.common import jobs
from reversal.training.objective import Objective
from reversal.training.pretraining import Biographies, pretrain

with jobs.job(snakemake) as job:
    given, params, output = snakemake.input, snakemake.params, snakemake.output
    pretrain(
        output.model,
        output.history,
        Biographies(params.words, params.templates, params.people, params.rows, params.seed),
        reader=given.tokenizer,
        causal=params.causal,
        shape=params.network,
        recipe=params.recipe,
        aim=Objective(**params.objective),
        # Not an output: Snakemake removes those of a job that failed.
        checkpoints=f"{output.model}.checkpoints",
        job=job,
    )
