"""Edit facts one at a time, at one site after another, and evaluate each edit."""

import random
from pathlib import Path

import pandas as pd

from reversal.common import files, jobs
from reversal.data import facts
from reversal.models import network
from reversal.storage import layers, prefixes, rank_one, scoring
from reversal.storage.compute_v import ValueOptimization

with jobs.job(snakemake) as job:
    params, settings = snakemake.params, snakemake.params.edits
    model, seed = snakemake.wildcards.model, int(snakemake.wildcards.seed)
    lm = scoring.LanguageModel(*network.load(snakemake.input.model), params.canvas)
    rng, train = random.Random(seed), facts.read(snakemake.input.train)
    options = {"prefixes": prefixes.choose_prefixes(lm, train, **params.prefixes)}
    peaks, traced = layers.read_peaks(snakemake.input.peaks), layers.read_site(snakemake.input.peaks)
    edited_layers = layers.resolve_value_layers(settings["layers"], peaks, len(network.layers(lm.net)), model, traced)
    job.log_line(f"edited layers: {edited_layers or 'none, since tracing finds no MLP that matters there'}")
    main_layer, reverse_layer = (peaks.get(direction, [*edited_layers, 0][0]) for direction in layers.DIRECTIONS)
    splits = {Path(file).stem: [facts.add_full_stop(row) for row in facts.read(file)] for file in snakemake.input.rows}
    size = {"max_facts": settings["max_facts"], "neighbours": settings["neighbours"]}
    plans = rank_one.plan_groups(lm, splits, params.groups, rng=rng, **size)
    layer_sites = [rank_one.Site("layer", layer) for layer in edited_layers]
    choice = {"main_layer": main_layer, "traced": traced, "count": settings["random_sites"], "rng": rng}
    sites = layer_sites + rank_one.choose_sites(lm, plans[params.groups[0]].requests, layer_sites, **choice)
    used = sorted({site.layer for site in sites} | {reverse_layer})
    sample = {"max_rows": settings["second_moment_rows"], "layers": used, "seed": seed}
    moments = rank_one.training_second_moments(lm, train, **sample)
    options |= {"optimization": ValueOptimization(**params.optimization), "reverse_layer": reverse_layer, "job": job}
    options["partly_unmasked"] = settings["partly_unmasked"]
    tables = []
    for group, plan in plans.items():
        own_sites = sites if group == params.groups[0] else layer_sites
        for (kind, layer, role), table in rank_one.edit_group(lm, plan, own_sites, moments, **options):
            tables.append(table.assign(model=model, seed=seed, group=group, site=kind, layer=layer, role=role))
    files.write_table(pd.concat(tables or [pd.DataFrame(columns=rank_one.COLUMNS)]), snakemake.output[0])
