"""Write one table of a study's data: Berglund et al.'s set."""

from reversal.common import jobs
from reversal.data import berglund, facts

with jobs.job(snakemake):
    people, train, splits = berglund.read(
        snakemake.input.source, seed=snakemake.params.seed, verify=snakemake.params.verify
    )
    facts.write({"facts": people, "train": train, **splits}[snakemake.wildcards.table], snakemake.output[0])
