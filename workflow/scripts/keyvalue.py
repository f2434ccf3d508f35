"""Read what one model holds of its facts, and seek their values, split by split."""

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
    peaks, depth = layers.read(snakemake.input.peaks), len(network.layers(asker.net))
    read_at = layers.chosen_layers(params.layers, peaks, depth, model)
    sought_at = layers.sought_layers(params.sought, peaks, depth, model) if params.sought else []
    splits = {Path(file).stem: [facts.closed(row) for row in facts.read(file)] for file in snakemake.input.rows}
    templates = extract.templates_by_question(asker, splits)
    for split, rows in splits.items():
        some = {row.fact for row in facts.one_per_fact(rows, params.most_facts)}
        rows = [row for row in rows if row.fact in some]
        names, readings = extract.read(asker, rows, layers=sorted({*read_at, *sought_at}))
        searches = []
        # With two templates: what two searches have in common is the ceiling.
        for template in templates[split][:2] if sought_at else ():
            job.say(f"{split}: template {template}")
            asked = [row for row in rows if row.template == template]
            how = {"layers": sought_at, "prefixes": before, "search": search}
            searches.append(extract.extract(asker, asked, job=job, **how))
        memory_files.write(names, readings, searches, Path(snakemake.output[0]) / f"{split}.safetensors")
