"""Trace the facts that one model answers, split by split, and measure at which steps their subjects are needed."""

from pathlib import Path

from reversal.common import jobs
from reversal.data import facts
from reversal.models import network
from reversal.recall import files as completion_files
from reversal.recall.sampling import Sampling
from reversal.tracing import files as trace_files
from reversal.tracing import readouts
from reversal.tracing.study import Tracing, trace_split
from reversal.tracing.time import Timing, measure_timing

with jobs.job(snakemake) as job:
    net, tokenizer = network.load(snakemake.input.model)
    settings, timing = Tracing(**snakemake.params.settings), Timing(**snakemake.params.time)
    sampling = {name: value for name, value in snakemake.params.sampling.items() if name != "steps"}
    sampling, steps = Sampling(**sampling, precision=snakemake.params.precision), snakemake.params.steps
    completions = completion_files.read(snakemake.input.completions)
    for file in snakemake.input.rows:
        split, rows = Path(file).stem, facts.read(file)
        answers = completion_files.select_completions(completions, split=split, steps=steps)
        questions, traces, outcomes = trace_split(net, tokenizer, rows, answers, settings, split=split, job=job)
        tables = {
            "outcomes": outcomes,
            "time": measure_timing(net, tokenizer, questions, sampling, steps, timing),
            "lens": readouts.read_layers(net, questions),
            "heads": readouts.measure_heads(net, questions),
            "attribution": readouts.measure_attribution(net, questions, traces),
        }
        trace_files.write(traces, tables, Path(snakemake.output[0]) / split)
