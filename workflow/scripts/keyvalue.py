"""Extract keys and values of one model, split by split."""

from pathlib import Path

import pandas as pd

from workflow.reversal import extractions, facts, keyvalue, memory_tables, model, reporting

with reporting.job(snakemake) as job:
    params, canvas = snakemake.params.keyvalue, snakemake.params.canvas
    net, tokenizer = model.load(snakemake.input.model)
    train = facts.read(snakemake.input.train)
    prefixes = keyvalue.prefixes_like(net, tokenizer, train, canvas=canvas, **params["prefixes"])
    job.say(f"prefixes: {prefixes}")
    layers = memory_tables.chosen_layers(
        "peak" if snakemake.wildcards.stage == "base" else params["layers"],
        pd.read_csv(snakemake.input.traces),
        snakemake.wildcards.model,
        len(model.layers(net)),
    )
    for file in snakemake.input.rows:
        rows = [keyvalue.close(row) for row in facts.read(file)]
        template = keyvalue.best_template(net, tokenizer, rows, canvas=canvas)
        job.say(f"{Path(file).stem}: template {template}")
        asked = facts.one_per_fact([row for row in rows if row.template == template], params["most_facts"])
        found = keyvalue.extract(
            net, tokenizer, asked, layers=layers, prefixes=prefixes, canvas=canvas, job=job, **params["search"]
        )
        extractions.write(found, Path(snakemake.output[0]) / f"{Path(file).stem}.safetensors")
