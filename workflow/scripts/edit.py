"""Edit facts one at a time, at one site after another, and ask about them."""

import random
from pathlib import Path

import pandas as pd

from reversal.common import files, jobs
from reversal.data import facts
from reversal.memory import edit, layers, prefixes, questions
from reversal.memory.search import Search
from reversal.models import network

with jobs.job(snakemake) as job:
    params, edits = snakemake.params, snakemake.params.edits
    model, seed = snakemake.wildcards.model, int(snakemake.wildcards.seed)
    asker = questions.Asker(*network.load(snakemake.input.model), params.canvas)
    rng, train = random.Random(seed), facts.read(snakemake.input.train)
    before = prefixes.prefixes_like(asker, train, **params.prefixes)
    peaks, traced = layers.read(snakemake.input.peaks), layers.read_site(snakemake.input.peaks)
    chosen = layers.sought_layers(edits["layers"], peaks, len(network.layers(asker.net)), model)
    lead = {way: peaks.get(way, chosen[0]) for way in layers.DIRECTIONS}
    splits = {Path(file).stem: [facts.closed(row) for row in facts.read(file)] for file in snakemake.input.rows}
    some = {"most_facts": edits["most_facts"], "neighbours": edits["neighbours"], "rng": rng}
    plans = edit.plan_groups(asker, splits, params.groups, **some)
    plain = [edit.Site("layer", layer) for layer in chosen]
    others = {"lead": lead["p2d"], "traced": traced, "count": edits["random"], "rng": rng}
    more = edit.other_sites(asker, plans[params.groups[0]].targets, plain, **others)
    used = sorted({site.layer for site in plain + more} | {lead["d2p"]})
    moments = edit.moments_in_training(asker, train, most=edits["training_rows"], layers=used, seed=seed)
    how = {"prefixes": before, "search": Search(**params.search), "unmasked": edits["unmasked"], "turned": lead["d2p"]}
    tables = []
    for group, plan in plans.items():
        sites = plain + more if group == params.groups[0] else plain
        for site, table in edit.edit_group(asker, plan, sites, moments, job=job, **how):
            tables.append(table.assign(model=model, seed=seed, group=group, **site._asdict()))
    files.write_table(pd.concat(tables), snakemake.output[0])
