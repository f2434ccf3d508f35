"""Write one table of a study's data: children and their parents."""

from reversal.common import jobs
from reversal.data import facts, pairs

with jobs.job(snakemake) as job:
    settings = dict(snakemake.params.settings)
    # The published file has some pairs twice.
    found = pairs.read(snakemake.input.source[0], repeated=settings.pop("file") is None)
    job.say(f"{len(found)} pairs, of which {len(pairs.answerable(found))} have one answer both ways")
    people, stated, splits = pairs.make(found, **settings)
    facts.write({"facts": people, "train": stated, **splits}[snakemake.wildcards.table], snakemake.output[0])
