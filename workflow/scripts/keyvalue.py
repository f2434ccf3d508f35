"""Extract keys and values of one model, split by split."""

from pathlib import Path

import pandas as pd
import torch

from workflow.reversal import facts, keyvalue, memory_tables, model, reporting

with reporting.job(snakemake) as job:
    params, canvas = dict(snakemake.params.keyvalue), snakemake.params.canvas
    params.pop("groups")
    net, tokenizer = model.load(snakemake.input.model)
    generator = torch.Generator().manual_seed(params.pop("seed"))
    count, lengths, most = (params.pop(name) for name in ("prefixes", "prefix_lengths", "most_facts"))
    prefixes = keyvalue.sample_prefixes(
        net, tokenizer, count=count, lengths=lengths, generator=generator, canvas=canvas
    )
    job.say(f"prefixes: {prefixes}")
    layers = list(range(len(model.layers(net))))
    if snakemake.wildcards.stage == "base":
        peaks = memory_tables.peaks(pd.read_csv(snakemake.input.traces), snakemake.wildcards.model)
        layers = sorted(set(peaks)) or layers
    for file in snakemake.input.rows:
        rows = facts.one_per_fact(facts.read(file), most)
        found = keyvalue.extract(
            net,
            tokenizer,
            rows,
            layers=layers,
            prefixes=prefixes,
            canvas=canvas,
            job=job,
            **params,
        )
        keyvalue.write(found, Path(snakemake.output[0]) / f"{Path(file).stem}.safetensors")
