"""Answer every test prompt with one model."""

from pathlib import Path

from workflow.reversal import facts, model, reporting, scoring

with reporting.job(snakemake) as job:
    net, tokenizer = model.load(snakemake.input.model)
    sampling = dict(snakemake.params.sampling)
    counts = sampling.pop("steps") if model.is_diffusion(net) else [None]
    splits = {Path(file).stem: facts.read(file) for file in snakemake.input.rows}
    completions = []
    with job.progress(len(splits) * len(counts), "completing", "tables") as progress:
        for split, rows in splits.items():
            for steps in counts:
                options = {**sampling, "steps": steps, "precision": snakemake.params.precision}
                completions += scoring.complete_split(net, tokenizer, rows, split=split, **options)
                progress.advance(split=split, steps=steps)
    scoring.write_completions(completions, snakemake.output[0])
