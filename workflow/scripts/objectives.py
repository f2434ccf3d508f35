"""The table of objectives of all models."""

import pandas as pd

from reversal.common import files, jobs
from reversal.data import facts
from reversal.figures import read
from reversal.recall import files as completion_files
from reversal.recall import objectives

with jobs.job(snakemake):
    given, trained = snakemake.input, snakemake.params.trained
    people = facts.read_facts(given.facts)
    table = objectives.table(
        read.each(completion_files.read, given.completions, trained),
        pd.concat(map(pd.read_csv, given.comparisons)),
        read.each(read.table, given.histories, trained),
        snakemake.params.taught,
        {fact.id for fact in people if fact.group in facts.CONTROL_GROUPS},
    )
    files.write_table(table, snakemake.output[0])
