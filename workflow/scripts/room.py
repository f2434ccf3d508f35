"""Refuse a canvas that cannot hold a model's questions and their answers, before anything is trained."""

import json

from reversal.common import files, jobs
from reversal.recall import room

with jobs.job(snakemake):
    found = room.require(snakemake.input.base, snakemake.input.rows, snakemake.params.canvas)
    with files.atomic(snakemake.output[0]) as file:
        file.write(json.dumps(found._asdict()).encode())
