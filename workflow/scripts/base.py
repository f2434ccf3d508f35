"""Make the model that fine-tuning starts from."""

from reversal.common import jobs
from reversal.training import bases

with jobs.job(snakemake) as job:
    given, params, output = snakemake.input, dict(snakemake.params), snakemake.output
    match snakemake.rule:
        case "base_bundled":
            bases.from_folder(given[0], output[0])
        case "base_scratch":
            bases.scratch(given.rows, output[0], seed=0, **params)
        case "base_pretrain":
            folder = f"{output.model}.checkpoints"
            sources = {"words": given.words, "templates": given.templates, "vocabulary_of": given.rows or None}
            bases.pretrain(output.model, output.history, checkpoints=folder, job=job, **sources, **params)
        case "base_hub":
            bases.from_hub(output[0], **params["hub"])
        case "base_lit_gpt":
            bases.from_lit_gpt(output[0], causal=params["causal"], **params["lit_gpt"])
