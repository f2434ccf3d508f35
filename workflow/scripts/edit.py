"""Edit facts one at a time, in one layer after another, and ask about them."""

import random
from pathlib import Path

import pandas as pd

from reversal.common import files, jobs
from reversal.data import facts
from reversal.memory import edit, extract, layers, prefixes, questions
from reversal.memory.search import Search
from reversal.models import network

with jobs.job(snakemake) as job:
    params, edits = snakemake.params, snakemake.params.edits
    model, seed = snakemake.wildcards.model, int(snakemake.wildcards.seed)
    asker = questions.Asker(*network.load(snakemake.input.model), params.canvas)
    search, rng = Search(**params.search), random.Random(seed)
    train = facts.read(snakemake.input.train)
    before = prefixes.prefixes_like(asker, train, **params.prefixes)
    depth = len(network.layers(asker.net))
    chosen = layers.chosen_layers(edits["layers"], layers.read(snakemake.input.peaks), depth, model)
    moments = edit.moments_in_training(asker, train, most=edits["training_rows"], layers=chosen, seed=seed)
    some = {"most_facts": edits["most_facts"], "neighbours": edits["neighbours"], "rng": rng}
    splits = {Path(file).stem: [facts.closed(row) for row in facts.read(file)] for file in snakemake.input.rows}
    template = extract.template_by_question(asker, splits)
    names, tables = list(splits), []
    for group, ahead, back in zip(params.groups, names[::2], names[1::2], strict=True):
        some["template"] = template[ahead]
        plan = edit.plan_edits(asker, splits[ahead], splits[back], **some)
        for layer, table in edit.edit_group(asker, plan, moments, prefixes=before, search=search, job=job):
            tables.append(table.assign(model=model, seed=seed, layer=layer, group=group))
    files.write_table(pd.concat(tables), snakemake.output[0])
