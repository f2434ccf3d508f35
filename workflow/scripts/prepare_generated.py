"""Write one table of a study's data: people made here."""

from reversal.common import jobs
from reversal.data import facts, generated

with jobs.job(snakemake):
    people, train, splits = generated.make(**snakemake.params.settings)
    facts.write({"facts": people, "train": train, **splits}[snakemake.wildcards.table], snakemake.output[0])
