"""Extract keys and values of one model, split by split."""

from pathlib import Path

import pandas as pd

from reversal.common import jobs
from reversal.data import facts
from reversal.memory import extract
from reversal.memory import files as memory_files
from reversal.memory import tables as memory_tables
from reversal.models import network

with jobs.job(snakemake) as job:
    params, canvas = snakemake.params.keyvalue, snakemake.params.canvas
    net, tokenizer = network.load(snakemake.input.model)
    train = facts.read(snakemake.input.train)
    prefixes = extract.prefixes_like(net, tokenizer, train, canvas=canvas, **params["prefixes"])
    job.say(f"prefixes: {prefixes}")
    layers = memory_tables.chosen_layers(
        "peak" if snakemake.wildcards.stage == "base" else params["layers"],
        pd.read_csv(snakemake.input.traces),
        snakemake.wildcards.model,
        len(network.layers(net)),
    )
    for file in snakemake.input.rows:
        rows = [extract.close(row) for row in facts.read(file)]
        template = extract.best_template(net, tokenizer, rows, canvas=canvas)
        job.say(f"{Path(file).stem}: template {template}")
        asked = facts.one_per_fact([row for row in rows if row.template == template], params["most_facts"])
        found = extract.extract(
            net, tokenizer, asked, layers=layers, prefixes=prefixes, canvas=canvas, job=job, **params["search"]
        )
        memory_files.write(found, Path(snakemake.output[0]) / f"{Path(file).stem}.safetensors")
