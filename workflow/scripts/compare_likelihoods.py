"""Compare the log-likelihoods of right and wrong completions under one model."""

from pathlib import Path

import pandas as pd
import torch

from reversal.common import files, jobs
from reversal.data import facts
from reversal.models import network
from reversal.recall import evaluation

with jobs.job(snakemake) as job:
    net, tokenizer = network.load(snakemake.input.model)
    generator = torch.Generator().manual_seed(int(snakemake.wildcards.seed))
    options = {name: getattr(snakemake.params, name) for name in ("canvas", "samples", "precision")}
    pairs = list(zip(snakemake.input.right, snakemake.input.wrong, strict=True))
    comparisons = []
    with job.progress(len(pairs), "comparing", "splits") as progress:
        for right, wrong in pairs:
            split = Path(right).stem
            rows = [facts.read(file) for file in (right, wrong)]
            comparisons += evaluation.compare_likelihoods(
                net, tokenizer, *rows, split=split, generator=generator, **options
            )
            progress.advance(split=split)
    table = pd.DataFrame(comparisons)
    table.insert(0, "seed", int(snakemake.wildcards.seed))
    table.insert(0, "model", snakemake.wildcards.model)
    files.write_table(table, snakemake.output[0])
