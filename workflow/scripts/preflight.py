"""Tell, before anything is trained, what later stages could not do with a model, its rows and the configuration."""

import json

from reversal.common import files, jobs
from reversal.data import prompts
from reversal.models import origins
from reversal.study import machine, preflight

with jobs.job(snakemake):
    given, model = snakemake.input, snakemake.wildcards.model
    base, probe = given.get("base"), snakemake.config["probe"]
    pretrained = base is None or origins.read_in_pretraining(base, given.lists, given.shipped)
    probed = [] if pretrained and not probe["file"] else prompts.read(given.prompts, probe["prompts"])
    measured = preflight.measure(f"{given.tokenizer}/tokenizer.json", given.rows, [prompt for prompt, _ in probed])
    # The configuration is not a parameter: what is changed in it later is compared when Snakemake starts, and must not
    # hold up what it changes.
    preflight.require(measured, snakemake.config, model, base=base)
    machine.require_room(snakemake.config, snakemake.params.models)
    with files.atomic(snakemake.output[0]) as file:
        file.write(json.dumps(measured, indent=1).encode())
