"""Extract keys and values of one model, split by split."""

from pathlib import Path

from reversal.common import jobs
from reversal.data import facts
from reversal.memory import extract, layers, prefixes, questions
from reversal.memory import files as memory_files
from reversal.memory.search import Search
from reversal.models import network

with jobs.job(snakemake) as job:
    params, model = snakemake.params, snakemake.wildcards.model
    asker = questions.Asker(*network.load(snakemake.input.model), params.canvas)
    search = Search(**params.search)
    before = prefixes.prefixes_like(asker, facts.read(snakemake.input.train), **params.prefixes)
    job.say(f"prefixes: {before}")
    depth = len(network.layers(asker.net))
    chosen = layers.chosen_layers(params.layers, layers.read(snakemake.input.peaks), depth, model)
    splits = {Path(file).stem: [facts.closed(row) for row in facts.read(file)] for file in snakemake.input.rows}
    template = extract.template_by_question(asker, splits)
    for split, rows in splits.items():
        job.say(f"{split}: template {template[split]}")
        asked = facts.one_per_fact([row for row in rows if row.template == template[split]], params.most_facts)
        found = extract.extract(asker, asked, layers=chosen, prefixes=before, search=search, job=job)
        memory_files.write(found, Path(snakemake.output[0]) / f"{split}.safetensors")
