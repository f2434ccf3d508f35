"""Probe a base with what it was pretrained on, or with general facts, and the fine-tuned model with the study's."""

import pandas as pd

from reversal.common import files, jobs
from reversal.data import facts, prompts
from reversal.models import network, origins
from reversal.recall import probe

with jobs.job(snakemake) as job:
    given, params = snakemake.input, snakemake.params
    read = params.pretrained_here or origins.read_in_pretraining(given.base, given.lists, given.shipped)
    if read and not params.given:
        about, drawn = "pretraining", {"people": params.people, "seed": params.seed, "count": params.prompts}
        known = probe.pretraining_prompts(params.words, params.templates, **drawn)
    else:
        about, known = "general", prompts.read(given.prompts, params.prompts)
    job.say(f"the base is asked about {about} facts")
    rows = [row for file in given.rows for row in facts.read(file)]
    asked = [(row.prompt, row.answer_text) for row in rows[:: max(1, len(rows) // params.prompts)]][: params.prompts]
    tables = []
    stages = (("pretrained", given.base, known, about), ("fine-tuned", given.tuned[0], asked, "study"))
    for stage, folder, some, what in stages:
        net, tokenizer = network.load(folder)
        table = probe.table(net, tokenizer, some, stage=stage, top=params.top, canvas=params.canvas)
        tables.append(table.assign(about=what))
    table = pd.concat(tables)
    table.insert(0, "model", snakemake.wildcards.model)
    files.write_table(table, snakemake.output[0])
