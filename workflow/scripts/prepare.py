"""Write one table of a study's data."""

from workflow.reversal import facts, generate, published, reporting

with reporting.job(snakemake):
    params, table = snakemake.params, snakemake.wildcards.table
    if params.source == "generated":
        people, train, splits = generate.read(**params.generated)
    else:
        options = {name: params.published[name] for name in ("seed", "verify")}
        people, train, splits = published.read(snakemake.input.source, **options)
    if table == "facts":
        facts.write_facts(people, snakemake.output[0])
    else:
        facts.write(train if table == "train" else splits[table], snakemake.output[0])
