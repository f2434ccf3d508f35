"""Check one model, its rows and the configuration before anything is trained."""

import json

from reversal.common import files, jobs
from reversal.study import machine, preflight

with jobs.job(snakemake):
    inputs, model = snakemake.input, snakemake.wildcards.model
    base = inputs.get("base")
    measured = preflight.measure_rows(f"{inputs.tokenizer}/tokenizer.json", inputs.rows)
    # The configuration is no parameter of the rule: a later change of it is checked when Snakemake starts, and must not
    # delay the jobs that it concerns.
    preflight.require_feasible(measured, snakemake.config, model, base=base)
    machine.require_disk_space(snakemake.config, snakemake.params.models)
    with files.atomic(snakemake.output[0]) as file:
        file.write(json.dumps(measured, indent=1).encode())
