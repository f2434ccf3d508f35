"""Read what one model holds of its facts, and seek their values, split by split."""

from pathlib import Path

from reversal.common import jobs
from reversal.data import facts
from reversal.models import network
from reversal.storage import files as storage_files
from reversal.storage import keyvalue, layers, prefixes, scoring
from reversal.storage.compute_v import Search

with jobs.job(snakemake) as job:
    params, model = snakemake.params, snakemake.wildcards.model
    lm = scoring.LanguageModel(*network.load(snakemake.input.model), params.canvas)
    search = Search(**params.search)
    before = prefixes.prefixes_like(lm, facts.read(snakemake.input.train), **params.prefixes)
    job.say(f"prefixes: {before}")
    peaks, depth = layers.read(snakemake.input.peaks), len(network.layers(lm.net))
    read_at = layers.chosen_layers(params.layers, peaks, depth, model)
    sought_at = layers.value_layers(params.value_layers, peaks, depth, model) if params.value_layers else []
    splits = {Path(file).stem: [facts.closed(row) for row in facts.read(file)] for file in snakemake.input.rows}
    templates = keyvalue.templates_by_question(lm, splits)
    for split, rows in splits.items():
        some = {row.fact for row in facts.one_per_fact(rows, params.max_facts)}
        rows = [row for row in rows if row.fact in some]
        names, readings = keyvalue.read(lm, rows, layers=sorted({*read_at, *sought_at}))
        searches = []
        # With two templates: what two searches have in common is the ceiling.
        for template in templates[split][:2] if sought_at else ():
            job.say(f"{split}: template {template}")
            asked = [row for row in rows if row.template == template]
            how = {"layers": sought_at, "prefixes": before, "search": search}
            searches.append(keyvalue.keyvalue(lm, asked, job=job, **how))
        storage_files.write(names, readings, searches, Path(snakemake.output[0]) / f"{split}.safetensors")
