"""Trace the facts that one model answers, split by split."""

from pathlib import Path

from reversal.common import jobs
from reversal.data import facts
from reversal.models import network
from reversal.recall import files as completion_files
from reversal.tracing import files as trace_files
from reversal.tracing.study import Tracing, trace_split

with jobs.job(snakemake) as job:
    net, tokenizer = network.load(snakemake.input.model)
    settings, steps = Tracing(**snakemake.params.settings), snakemake.params.steps
    completions = completion_files.read(snakemake.input.completions)
    for file in snakemake.input.rows:
        split, rows = Path(file).stem, facts.read(file)
        answers = completion_files.of(completions, split=split, steps=steps)
        traces, outcomes = trace_split(net, tokenizer, rows, answers, settings, split=split, job=job)
        trace_files.write(traces, outcomes, Path(snakemake.output[0]) / split)
