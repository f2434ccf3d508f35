"""Make the tables of recall from completions."""

from reversal.common import files, jobs
from reversal.figures import read
from reversal.recall import files as completion_files
from reversal.recall import tables as recall_tables

with jobs.job(snakemake):
    params, output = snakemake.params, snakemake.output
    completions = read.read_runs(completion_files.read, snakemake.input.completions)
    completions = completions[completions.split.isin(params.splits)]  # the others are for tracing
    files.write_table(recall_tables.step_scaling(completions), output.steps)
    files.write_table(recall_tables.differences(completions, params.families), output.differences)
