"""Turn completions into tables of recall."""

import numpy as np
import pandas as pd

from workflow.reversal import completion_files, files, reporting, scoring

with reporting.job(snakemake):
    params, output = snakemake.params, snakemake.output
    parts = []
    for name, file in zip(params.trained, snakemake.input.completions, strict=True):
        model, seed = name.split("/seed_")
        parts.append(completion_files.read(file, model=model, seed=int(seed)))
    completions = pd.concat(parts)
    how = {"draws": params.bootstrap_draws, "rng": np.random.default_rng(params.seed)}
    published = pd.read_csv(snakemake.input.published) if params.show_published else None
    scaling = scoring.step_scaling(completions, **how)
    pairs = [(mdm, ar) for mdm in params.diffusion for ar in params.autoregressive]
    differences = [
        scoring.paired_differences(completions, diffusion_model=mdm, autoregressive_model=ar, **how)
        for mdm, ar in pairs
    ]
    files.write_table(scaling, output.steps)
    files.write_table(scoring.by_training_direction(scaling, published), output.by_training)
    files.write_table(scoring.by_question_direction(scaling, published), output.by_question)
    files.write_table(pd.concat(differences or [pd.DataFrame({"diffusion": []})]), output.differences)
