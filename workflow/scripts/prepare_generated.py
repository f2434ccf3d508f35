"""Write one table of a study's data: generated people."""

from reversal.common import jobs
from reversal.data import facts, generated

with jobs.job(snakemake):
    people, train, splits = generated.make(**snakemake.params.settings)
    tables = {"facts": people, "train": train, **splits}
    folder = snakemake.params.settings["templates"]
    if snakemake.wildcards.table == "train_mentions":
        tables["train_mentions"] = generated.make_mentions(people, generated.read_mentions(f"{folder}/mentions.txt"))
    if snakemake.wildcards.table == "train_identity":
        identities = generated.read_identities(f"{folder}/identity.txt")
        tables["train_identity"] = generated.make_identities(people, identities)
    facts.write(tables[snakemake.wildcards.table], snakemake.output[0])
