"""Refuse a canvas that cannot hold a model's questions and their answers, before anything is trained."""

import json

from reversal.common import files, jobs
from reversal.recall import room

with jobs.job(snakemake):
    given, canvas = snakemake.input, snakemake.params.canvas
    found = room.require(given.base, given.rows, canvas, model=snakemake.wildcards.model)
    with files.atomic(snakemake.output[0]) as file:
        file.write(json.dumps(found._asdict()).encode())
