"""Write one table of a study's data: children and their parents."""

from reversal.common import jobs
from reversal.data import facts, pairs

with jobs.job(snakemake) as job:
    settings = dict(snakemake.params.settings)
    # The published file repeats some pairs.
    family_pairs = pairs.read(snakemake.input.source[0], repeated=settings.pop("file") is None)
    usable = pairs.select_unambiguous(family_pairs)
    job.log_line(f"{len(usable)} of {len(family_pairs)} pairs have one answer in both directions")
    people, statements, splits = pairs.make(family_pairs, **settings)
    facts.write({"facts": people, "train": statements, **splits}[snakemake.wildcards.table], snakemake.output[0])
