"""Write one table of a study's data: generated people."""

from reversal.common import jobs
from reversal.data import facts, generated

with jobs.job(snakemake):
    people, train, splits = generated.make(**snakemake.params.settings)
    tables = {"facts": people, "train": train, **splits}
    if snakemake.wildcards.table == "train_mentions":
        templates = generated.read_mentions(f"{snakemake.params.settings['templates']}/mentions.txt")
        tables["train_mentions"] = generated.make_mentions(people, templates)
    facts.write(tables[snakemake.wildcards.table], snakemake.output[0])
