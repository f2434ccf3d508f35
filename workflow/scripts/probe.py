"""Probe a base with what it was pretrained on, and the fine-tuned model with the study's facts."""

import pandas as pd

from reversal.common import files, jobs
from reversal.data import facts
from reversal.models import network
from reversal.recall import first_tokens

with jobs.job(snakemake):
    given, params = snakemake.input, snakemake.params
    show = {"top": params.top, "canvas": params.canvas}
    if given.prompts:
        known = first_tokens.given_prompts(given.prompts, params.prompts)
    else:
        known = first_tokens.pretraining_prompts(
            given.words,
            given.templates,
            people=params.pretraining["people"],
            seed=params.pretraining["seed"],
            count=params.prompts,
        )
    rows = [row for file in given.rows for row in facts.read(file)]
    asked = [(row.prompt, row.answer_text) for row in rows[:: max(1, len(rows) // params.prompts)]][: params.prompts]
    tables = []
    for stage, folder, prompts in (("pretrained", given.base, known), ("fine-tuned", given.tuned[0], asked)):
        net, tokenizer = network.load(folder)
        tables.append(first_tokens.table(net, tokenizer, prompts, stage=stage, **show))
    table = pd.concat(tables)
    table.insert(0, "model", snakemake.wildcards.model)
    files.write_table(table, snakemake.output[0])
