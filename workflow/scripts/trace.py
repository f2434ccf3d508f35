"""Trace the facts that one model answers, split by split, and ask when their subjects are needed."""

from pathlib import Path

from reversal.common import jobs
from reversal.data import facts
from reversal.models import network
from reversal.recall import files as completion_files
from reversal.recall.sampling import Sampling
from reversal.tracing import files as trace_files
from reversal.tracing.study import Tracing, trace_split
from reversal.tracing.time import Timing, when_needed

with jobs.job(snakemake) as job:
    net, tokenizer = network.load(snakemake.input.model)
    settings, timing = Tracing(**snakemake.params.settings), Timing(**snakemake.params.time)
    sampling = {name: value for name, value in snakemake.params.sampling.items() if name != "steps"}
    sampling, steps = Sampling(**sampling, precision=snakemake.params.precision), snakemake.params.steps
    completions = completion_files.read(snakemake.input.completions)
    for file in snakemake.input.rows:
        split, rows = Path(file).stem, facts.read(file)
        answers = completion_files.of(completions, split=split, steps=steps)
        found, traces, outcomes = trace_split(net, tokenizer, rows, answers, settings, split=split, job=job)
        needed = when_needed(net, tokenizer, found, traces, sampling, steps, timing)
        trace_files.write(traces, outcomes, needed, Path(snakemake.output[0]) / split)
