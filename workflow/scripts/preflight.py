"""Check one model, its rows and the configuration before anything is trained."""

import json

from reversal.common import files, jobs
from reversal.data import generated
from reversal.models import origins
from reversal.study import machine, preflight

with jobs.job(snakemake):
    inputs, model = snakemake.input, snakemake.wildcards.model
    base, probe = inputs.get("base"), snakemake.config["probe"]
    knows_pretraining = base is None or origins.was_pretrained_on(base, inputs.lists, inputs.shipped)
    probes = [] if knows_pretraining and not probe["file"] else generated.read_prompts(inputs.prompts, probe["prompts"])
    measured = preflight.measure_rows(f"{inputs.tokenizer}/tokenizer.json", inputs.rows, [text for text, _ in probes])
    # The configuration is no parameter of the rule: a later change of it is checked when Snakemake starts, and must not
    # delay the jobs that it concerns.
    preflight.require_feasible(measured, snakemake.config, model, base=base)
    machine.require_disk_space(snakemake.config, snakemake.params.models)
    with files.atomic(snakemake.output[0]) as file:
        file.write(json.dumps(measured, indent=1).encode())
