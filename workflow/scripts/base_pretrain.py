"""Pretrain the model that fine-tuning starts from."""

from reversal.common import jobs
from reversal.training.objective import Objective
from reversal.training.pretraining import Biographies, pretrain

with jobs.job(snakemake) as job:
    params, output = snakemake.params, snakemake.output
    pretrain(
        output.model,
        output.history,
        Biographies(params.words, params.templates, params.people, params.rows, params.seed, params.name_first),
        tokenizer_folder=snakemake.input.tokenizer,
        causal=params.causal,
        shape=params.network,
        recipe=params.recipe,
        objective=Objective(**params.objective),
        # Not an output, since Snakemake removes the outputs of a failed job.
        checkpoints=f"{output.model}.checkpoints",
        job=job,
    )
