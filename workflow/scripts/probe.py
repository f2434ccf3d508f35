"""Probe a base with facts of its pretraining, or with general facts, and the fine-tuned model with the study's."""

import pandas as pd

from reversal.common import files, jobs
from reversal.data import facts, generated
from reversal.models import network, origins
from reversal.recall import probe

with jobs.job(snakemake) as job:
    inputs, params = snakemake.input, snakemake.params
    known = params.pretrained_here or origins.was_pretrained_on(inputs.base, inputs.lists, inputs.shipped)
    if known and not params.has_prompt_file:
        about, options = "pretraining", {"people": params.people, "seed": params.seed, "count": params.prompts}
        base_prompts = probe.make_pretraining_prompts(params.words, params.templates, **options)
    else:
        about, base_prompts = "general", generated.read_prompts(inputs.prompts, params.prompts)
    job.log_line(f"the base is probed with {about} facts")
    rows = [row for file in inputs.rows for row in facts.read(file)]
    rows = rows[:: max(1, len(rows) // params.prompts)][: params.prompts]
    study_prompts = [(row.prompt, row.answer_text) for row in rows]
    tables = []
    stages = (("pretrained", inputs.base, base_prompts, about), ("fine-tuned", inputs.tuned[0], study_prompts, "study"))
    for stage, folder, prompts, source in stages:
        net, tokenizer = network.load(folder)
        table = probe.make_table(net, tokenizer, prompts, stage=stage, top=params.top, canvas=params.canvas)
        tables.append(table.assign(about=source))
    table = pd.concat(tables)
    table.insert(0, "model", snakemake.wildcards.model)
    files.write_table(table, snakemake.output[0])
