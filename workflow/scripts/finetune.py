"""Fine-tune one model with one seed."""

from reversal.common import jobs
from reversal.training import loop

with jobs.job(snakemake) as job:
    params, output = snakemake.params, snakemake.output
    task = {
        "base": snakemake.input.base,
        "rows": dict(zip(params.train_on, snakemake.input.rows, strict=True)),
        "facts": snakemake.input.facts or None,
        "objective": dict(params.objective),
        "recipe": {**params.recipe, "seed": int(snakemake.wildcards.seed)},
        "output": output.model,
        "history": output.history,
        # Not an output, since Snakemake removes the outputs of a failed job.
        "checkpoints": f"{output.model}.checkpoints",
        "checkpoint_seconds": params.checkpoint_seconds,
    }
    loop.run(task, processes=params.processes, job=job)
