"""Make the tables of recall from completions."""

import pandas as pd

from reversal.common import files, jobs
from reversal.figures import read
from reversal.recall import files as completion_files
from reversal.recall import tables as recall_tables

with jobs.job(snakemake):
    params, output = snakemake.params, snakemake.output
    completions = read.read_runs(completion_files.read, snakemake.input.completions)
    completions = completions[completions.split.isin(params.splits)]  # the others are for tracing
    smdm = pd.read_csv(snakemake.input.smdm) if params.with_smdm else None
    scaling = recall_tables.step_scaling(completions)
    files.write_table(scaling, output.steps)
    files.write_table(recall_tables.by_training_direction(scaling, smdm), output.by_training)
    files.write_table(recall_tables.by_question_direction(scaling, smdm), output.by_question)
    files.write_table(recall_tables.differences(completions, params.families), output.differences)
