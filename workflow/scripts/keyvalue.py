"""Read one model's activations and optimise the values of its facts, split by split."""

from pathlib import Path

from reversal.common import jobs
from reversal.data import facts
from reversal.models import network
from reversal.storage import files as storage_files
from reversal.storage import keyvalue, layers, prefixes, scoring
from reversal.storage.compute_v import ValueOptimization

with jobs.job(snakemake) as job:
    params, model = snakemake.params, snakemake.wildcards.model
    lm = scoring.LanguageModel(*network.load(snakemake.input.model), params.canvas)
    texts = prefixes.choose_prefixes(lm, facts.read(snakemake.input.train), **params.prefixes)
    job.log_line(f"prefixes: {texts}")
    peaks, depth = layers.read_peaks(snakemake.input.peaks), len(network.layers(lm.net))
    read_layers = layers.resolve_layers(params.layers, peaks, depth, model)
    choice, site = params.value_layers, layers.read_site(snakemake.input.peaks)
    value_layers = layers.resolve_value_layers(choice, peaks, depth, model, site) if choice else []
    job.log_line(f"values in layers {value_layers}")
    options = {"layers": value_layers, "prefixes": texts, "optimization": ValueOptimization(**params.optimization)}
    splits = {Path(file).stem: [facts.add_full_stop(row) for row in facts.read(file)] for file in snakemake.input.rows}
    templates = keyvalue.rank_templates_by_split(lm, splits)
    for split, rows in splits.items():
        chosen = {row.fact for row in facts.select_first_rows(rows, params.max_facts)}
        rows = [row for row in rows if row.fact in chosen]
        names, activations = keyvalue.read_activations(lm, rows, layers=sorted({*read_layers, *value_layers}))
        extractions = []
        # Values of two templates: their similarity is the ceiling for comparisons between directions.
        for template in templates[split][:2] if value_layers else ():
            job.log_line(f"{split}: template {template}")
            template_rows = [row for row in rows if row.template == template]
            extractions.append(keyvalue.extract_keyvalues(lm, template_rows, job=job, **options))
        storage_files.write_vectors(names, activations, extractions, Path(snakemake.output[0]) / f"{split}.safetensors")
