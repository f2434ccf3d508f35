"""Edit facts one at a time, in one layer after another, and ask about them."""

import random

import pandas as pd
import torch

from reversal.common import files, jobs
from reversal.data import facts
from reversal.memory import edit, extract
from reversal.memory import tables as memory_tables
from reversal.models import network

with jobs.job(snakemake) as job:
    params, edits, canvas = snakemake.params.keyvalue, snakemake.params.edits, snakemake.params.canvas
    net, tokenizer = network.load(snakemake.input.model)
    name, seed = snakemake.wildcards.model, int(snakemake.wildcards.seed)
    generator, rng = torch.Generator().manual_seed(seed), random.Random(seed)
    traces = pd.read_csv(snakemake.input.traces)
    layers = memory_tables.chosen_layers(edits["layers"], traces, name, len(network.layers(net)))
    peak = next(iter(memory_tables.peaks(traces, name)), layers[0])  # of the forward question
    train = facts.read(snakemake.input.train)
    prefixes = extract.prefixes_like(net, tokenizer, train, canvas=canvas, **params["prefixes"])
    some = train[:: max(1, len(train) // (edits["training_rows"] or len(train)))]
    ids = [tokenizer(row.text)["input_ids"] for row in some]
    moments = edit.second_moments(net, ids, layers=layers, canvas=canvas, generator=generator)
    tables = []
    splits = [[extract.close(row) for row in facts.read(file)] for file in snakemake.input.rows]
    for group, ahead, back in (("both", *splits[:2]), ("p2d", *splits[2:])):
        template = extract.best_template(net, tokenizer, ahead, canvas=canvas)
        donors = edit.choose_donors(tokenizer, ahead, rng=rng)
        chosen = {fact: donors[fact] for fact in list(donors)[: edits["most_facts"]]}
        targets = [row for row in edit.retarget(ahead, donors) if row.fact in chosen and row.template == template]
        asked = edit.probes(ahead, back, chosen, template=template, neighbours=edits["neighbours"], rng=rng)
        for found in extract.extract(
            net,
            tokenizer,
            targets,
            layers=layers,
            prefixes=prefixes,
            canvas=canvas,
            key_context="question",
            job=job,
            **params["search"],
        ):
            probed = edit.edit_all(net, tokenizer, asked, found, moments[found.layer], canvas=canvas, job=job)
            about = {"model": name, "seed": seed, "layer": found.layer, "peak": found.layer == peak, "group": group}
            tables.append(edit.edits_table(probed, found.outcomes.converged).assign(**about))
    files.write_table(pd.concat(tables), snakemake.output[0])
