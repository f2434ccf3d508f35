"""Write one table of a study's data: Berglund et al.'s set, or another in its layout."""

from reversal.common import jobs
from reversal.data import berglund, facts

with jobs.job(snakemake):
    settings = dict(snakemake.params.settings)
    folder = settings.pop("folder") or snakemake.params.downloaded
    people, train, splits = berglund.read(folder, **settings)
    facts.write({"facts": people, "train": train, **splits}[snakemake.wildcards.table], snakemake.output[0])
