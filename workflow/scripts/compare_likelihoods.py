"""Log-probabilities of right and wrong completions, by one model."""

from pathlib import Path

import pandas as pd
import torch

from workflow.reversal import asking, facts, files, model, reporting

with reporting.job(snakemake) as job:
    net, tokenizer = model.load(snakemake.input.model)
    generator = torch.Generator().manual_seed(int(snakemake.wildcards.seed))
    options = {name: getattr(snakemake.params, name) for name in ("canvas", "samples", "precision")}
    pairs = list(zip(snakemake.input.right, snakemake.input.wrong, strict=True))
    comparisons = []
    with job.progress(len(pairs), "comparing", "splits") as progress:
        for right, wrong in pairs:
            split = Path(right).stem
            rows = [facts.read(file) for file in (right, wrong)]
            comparisons += asking.compare_likelihoods(
                net, tokenizer, *rows, split=split, generator=generator, **options
            )
            progress.advance(split=split)
    table = pd.DataFrame(comparisons)
    table.insert(0, "seed", int(snakemake.wildcards.seed))
    table.insert(0, "model", snakemake.wildcards.model)
    files.write_table(table, snakemake.output[0])
