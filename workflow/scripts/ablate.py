"""Ablate the sampler of one diffusion model, one setting at a time."""

import random
from pathlib import Path

from reversal.common import files, jobs
from reversal.data import facts
from reversal.models import network
from reversal.recall import ablation

with jobs.job(snakemake) as job:
    params = snakemake.params
    net, tokenizer = network.load(snakemake.input.model)
    splits = {}
    for file in snakemake.input.rows:
        rows = facts.read(file)
        # Drawn at random: every n-th row would miss some templates, which the rows repeat in turn.
        splits[Path(file).stem] = random.Random(0).sample(rows, min(params.rows, len(rows)))
    sampling = {**params.sampling, "steps": params.steps, "precision": params.precision}
    table = ablation.ablate(net, tokenizer, splits, sampling=sampling, factors=params.factors, job=job)
    table.insert(0, "seed", int(snakemake.wildcards.seed))
    table.insert(0, "model", snakemake.wildcards.model)
    files.write_table(table, snakemake.output[0])
