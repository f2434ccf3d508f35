"""Train a network with a store, and write the facts of people who are taught both ways into it."""

from safetensors.torch import save

from reversal.common import files, jobs
from reversal.data import facts, generated
from reversal.models import network
from reversal.storage import known, scoring

with jobs.job(snakemake) as job:
    params, seed = snakemake.params, int(snakemake.wildcards.seed)
    settings = known.StoreTraining(**params.training)
    net, tokenizer = network.load(snakemake.input.base[0])
    pretraining, study = (generated.read_directions(params.templates, prefix=prefix) for prefix in ("pretraining_", ""))
    templates = {
        direction: pretraining[direction] + study[direction][: params.train_templates] for direction in pretraining
    }
    options = {"words": params.words, "templates": templates, "canvas": params.canvas, "seed": seed}
    net = known.train_store(net, tokenizer, settings, **options, job=job)
    people = [fact for fact in facts.read_facts(snakemake.input.facts) if fact.group == "both"]
    written = {fact.id for fact in people}
    rows = [row for row in facts.read(snakemake.input.rows) if row.fact in written]
    lm = scoring.LanguageModel(net, tokenizer, params.canvas)
    parts = known.write_facts(lm, people, rows, settings, seed=seed)
    network.save(net, tokenizer, snakemake.output.model)
    with files.atomic(snakemake.output.parts) as draft:
        draft.write(save({fact: part.contiguous().cpu() for fact, part in parts.items()}))
