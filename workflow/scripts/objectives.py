"""Make the table of training objectives of all models."""

import pandas as pd

from reversal.common import files, jobs
from reversal.data import facts
from reversal.figures import read
from reversal.recall import files as completion_files
from reversal.recall import objectives

with jobs.job(snakemake):
    inputs = snakemake.input
    people = facts.read_facts(inputs.facts)
    table = objectives.make_table(
        read.read_runs(completion_files.read, inputs.completions),
        pd.concat(map(pd.read_csv, inputs.comparisons)),
        read.read_runs(read.read_table, inputs.histories),
        snakemake.params.training,
        {fact.id for fact in people if fact.group in facts.CONTROL_GROUPS},
    )
    files.write_table(table, snakemake.output[0])
