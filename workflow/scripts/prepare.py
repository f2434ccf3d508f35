"""Write one table of a study's data."""

from reversal.common import jobs
from reversal.data import berglund, facts, generated

with jobs.job(snakemake):
    params, table = snakemake.params, snakemake.wildcards.table
    if params.source == "generated":
        people, train, splits = generated.make(**params.generated)
    else:
        options = {name: params.published[name] for name in ("seed", "verify")}
        people, train, splits = berglund.read(snakemake.input.source, **options)
    if table == "facts":
        facts.write_facts(people, snakemake.output[0])
    else:
        facts.write(train if table == "train" else splits[table], snakemake.output[0])
