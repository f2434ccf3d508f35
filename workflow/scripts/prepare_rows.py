"""Write one table of a study's data: the user's own rows."""

from reversal.common import jobs
from reversal.data import facts, rows

with jobs.job(snakemake):
    people, train, splits = rows.read(**snakemake.params.settings)
    facts.write({"facts": people, "train": train, **splits}[snakemake.wildcards.table], snakemake.output[0])
