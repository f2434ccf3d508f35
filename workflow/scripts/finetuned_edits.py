"""Make fine-tuned edits of one model's facts, one direction at a time, and compare the gradients of both directions."""

import pandas as pd

from reversal.common import files, jobs
from reversal.data import facts
from reversal.models import network
from reversal.storage import finetuned, gradients, scoring

with jobs.job(snakemake) as job:
    params, stage = snakemake.params, snakemake.wildcards.stage
    settings = finetuned.EditSettings(**params.edits)
    lm = scoring.LanguageModel(*network.load(snakemake.input.model), params.canvas)
    run = {"model": snakemake.wildcards.model, "seed": stage.removeprefix("seed_"), "stage": stage}
    splits = [[facts.add_full_stop(row) for row in facts.read(file)] for file in snakemake.input.rows]
    edits, compared = [], []
    for group, p2d, d2p in zip(settings.groups, splits[::2], splits[1::2], strict=True):
        for direction, forward, reverse in (("p2d", p2d, d2p), ("d2p", d2p, p2d)):
            columns = run | {"group": group, "edited": direction}
            edits.append(finetuned.make_all_edits(lm, forward, reverse, settings, job=job).assign(**columns))
            with finetuned.trainable(lm.net, settings.gradient_weights, settings.adapter):
                table = gradients.compare(lm, forward, reverse, max_facts=settings.max_facts)
            compared.append(table.assign(**columns))
    files.write_table(pd.concat(edits), snakemake.output.edits)
    files.write_table(pd.concat(compared), snakemake.output.gradients)
