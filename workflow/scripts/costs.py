"""What the jobs of a run cost, in one table."""

from pathlib import Path

from reversal.common import files, jobs
from reversal.paper import costs

with jobs.job(snakemake):
    params, output = snakemake.params, snakemake.output[0]
    found = costs.table(Path(output).parents[1], models=params.models, **params.energy)
    files.write_table(found, output)
