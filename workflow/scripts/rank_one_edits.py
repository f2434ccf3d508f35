"""Edit facts one at a time, at one site after another, and ask about them."""

import random
from pathlib import Path

import pandas as pd

from reversal.common import files, jobs
from reversal.data import facts
from reversal.models import network
from reversal.storage import layers, prefixes, rank_one, scoring
from reversal.storage.compute_v import Search

with jobs.job(snakemake) as job:
    params, edits = snakemake.params, snakemake.params.edits
    model, seed = snakemake.wildcards.model, int(snakemake.wildcards.seed)
    lm = scoring.LanguageModel(*network.load(snakemake.input.model), params.canvas)
    rng, train = random.Random(seed), facts.read(snakemake.input.train)
    before = prefixes.prefixes_like(lm, train, **params.prefixes)
    peaks, traced = layers.read(snakemake.input.peaks), layers.read_site(snakemake.input.peaks)
    chosen = layers.value_layers(edits["layers"], peaks, len(network.layers(lm.net)), model)
    lead = {way: peaks.get(way, chosen[0]) for way in layers.DIRECTIONS}
    splits = {Path(file).stem: [facts.closed(row) for row in facts.read(file)] for file in snakemake.input.rows}
    some = {"max_facts": edits["max_facts"], "neighbours": edits["neighbours"], "rng": rng}
    plans = rank_one.plan_groups(lm, splits, params.groups, **some)
    plain = [rank_one.Site("layer", layer) for layer in chosen]
    others = {"lead": lead["p2d"], "traced": traced, "count": edits["random"], "rng": rng}
    more = rank_one.other_sites(lm, plans[params.groups[0]].targets, plain, **others)
    used = sorted({site.layer for site in plain + more} | {lead["d2p"]})
    moments = rank_one.moments_in_training(lm, train, most=edits["training_rows"], layers=used, seed=seed)
    how = {"prefixes": before, "search": Search(**params.search), "unmasked": edits["unmasked"], "turned": lead["d2p"]}
    tables = []
    for group, plan in plans.items():
        sites = plain + more if group == params.groups[0] else plain
        for site, table in rank_one.edit_group(lm, plan, sites, moments, job=job, **how):
            tables.append(table.assign(model=model, seed=seed, group=group, **site._asdict()))
    files.write_table(pd.concat(tables), snakemake.output[0])
