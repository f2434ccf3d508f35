"""Refuse a canvas that cannot hold a model's questions and their answers, before anything is trained."""

import json

from reversal.common import files, jobs
from reversal.recall import room

with jobs.job(snakemake):
    given, config, model = snakemake.input, snakemake.config, snakemake.wildcards.model
    # Not a parameter: a canvas changed later is checked where it is used, and must not hold up what it changes.
    canvas = config["models"][model].get("canvas", config["sampling"]["canvas"])
    found = room.require(given.base, given.rows, canvas, model=model)
    with files.atomic(snakemake.output[0]) as file:
        file.write(json.dumps(found._asdict()).encode())
