"""Edit facts one at a time and ask about them."""

import random

import pandas as pd
import torch

from workflow.reversal import edit, facts, files, keyvalue, model, reporting, trace_tables

with reporting.job(snakemake) as job:
    params, canvas = dict(snakemake.params.keyvalue), snakemake.params.canvas
    net, tokenizer = model.load(snakemake.input.model)
    name, seed = snakemake.wildcards.model, int(snakemake.wildcards.seed)
    generator, rng = torch.Generator().manual_seed(params.pop("seed")), random.Random(seed)
    count, lengths = params.pop("prefixes"), params.pop("prefix_lengths")
    for unused in ("most_facts", "groups"):
        params.pop(unused)
    prefixes = keyvalue.sample_prefixes(
        net, tokenizer, count=count, lengths=lengths, generator=generator, canvas=canvas
    )
    layer = trace_tables.peak_layer(pd.read_csv(snakemake.input.traces), model=name, direction="p2d")
    ids = [tokenizer(row.prompt + row.completion)["input_ids"] for row in facts.read(snakemake.input.train)]
    moment = edit.second_moments(net, ids, layers=[layer], canvas=canvas, generator=generator)[layer]
    tables = []
    both_ahead, both_back, p2d_ahead, p2d_back = map(facts.read, snakemake.input.rows)
    for group, ahead, back in (("both", both_ahead, both_back), ("p2d", p2d_ahead, p2d_back)):
        template = ahead[0].template
        donors = edit.choose_donors(tokenizer, ahead, rng=rng)
        chosen = {fact: donors[fact] for fact in list(donors)[: snakemake.params.edits["most_facts"]]}
        targets = [row for row in edit.retarget(ahead, donors) if row.fact in chosen and row.template == template]
        found = keyvalue.extract(
            net, tokenizer, targets, layers=[layer], prefixes=prefixes, canvas=canvas, job=job, **params
        )
        asked = edit.probes(
            ahead, back, chosen, template=template, neighbours=snakemake.params.edits["neighbours"], rng=rng
        )
        probed = edit.edit_all(net, tokenizer, asked, found[0], moment, canvas=canvas, job=job)
        about = {"model": name, "seed": seed, "layer": layer, "group": group}
        tables.append(edit.edits_table(probed).assign(**about))
    files.write_table(pd.concat(tables), snakemake.output[0])
