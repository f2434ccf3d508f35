"""Divide a store between the two directions, and check what each of its matrices holds."""

from safetensors.torch import load_file

from reversal.common import files, jobs
from reversal.data import facts
from reversal.models import network
from reversal.storage import known, scoring

with jobs.job(snakemake):
    net, tokenizer = network.load(snakemake.input.store)
    device = scoring.device_of(net)
    parts = {fact: part.to(device) for fact, part in load_file(snakemake.input.parts).items()}
    net = known.split_store(net, parts, **snakemake.params.sharing)
    rows = [[facts.add_full_stop(row) for row in facts.read(file)] for file in snakemake.input.rows]
    checks = known.check_store(scoring.LanguageModel(net, tokenizer, snakemake.params.canvas), *reversed(rows))
    run = {"model": snakemake.wildcards.model, "seed": snakemake.wildcards.seed}
    files.write_table(checks.assign(**run), snakemake.output.checks)
    network.save(net, tokenizer, snakemake.output.model)
