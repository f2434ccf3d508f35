"""Rewrite facts of one model by gradient, one direction at a time, and compare the gradients of both."""

import numpy as np
import pandas as pd

from reversal.common import files, jobs
from reversal.data import facts
from reversal.models import network
from reversal.storage import finetuned, gradients, scoring

with jobs.job(snakemake) as job:
    params, stage = snakemake.params, snakemake.wildcards.stage
    settings = finetuned.Rewriting(**params.rewriting)
    lm = scoring.LanguageModel(*network.load(snakemake.input.model), params.canvas)
    run = {"model": snakemake.wildcards.model, "seed": stage.removeprefix("seed_"), "stage": stage}
    splits = [[facts.closed(row) for row in facts.read(file)] for file in snakemake.input.rows]
    lessons, compared = [], []
    for group, *both in zip(settings.groups, splits[::2], splits[1::2], strict=True):
        for direction, ahead, back in (("p2d", *both), ("d2p", *reversed(both))):
            about = run | {"group": group, "rewritten": direction}
            lessons.append(finetuned.rewrite_all(lm, ahead, back, settings, job=job).assign(**about))
            rng = np.random.default_rng(settings.seed)
            with finetuned.trainable(lm.net, settings.compared, settings.adapter):
                table = gradients.compare(lm, ahead, back, rng=rng, max_facts=settings.max_facts)
            compared.append(table.assign(**about))
    files.write_table(pd.concat(lessons), snakemake.output.lessons)
    files.write_table(pd.concat(compared), snakemake.output.gradients)
