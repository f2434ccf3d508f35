"""Trace the facts that one model answers, split by split."""

from pathlib import Path

from reversal.common import jobs
from reversal.data import facts
from reversal.models import network
from reversal.recall import files as completion_files
from reversal.tracing import files as trace_files
from reversal.tracing import study as trace_study

with jobs.job(snakemake) as job:
    net, tokenizer = network.load(snakemake.input.model)
    options = {
        name: value for name, value in snakemake.params.tracing.items() if name not in ("splits", "sampling_steps")
    }
    sampling = {**snakemake.params.sampling, "steps": snakemake.params.tracing["sampling_steps"]}
    canvas = sampling.pop("canvas")
    completions = completion_files.read(snakemake.input.completions)
    for file in snakemake.input.rows:
        split = Path(file).stem
        correct = completion_files.answered(completions, split=split, steps=sampling["steps"])
        traces, outcomes = trace_study.trace_split(
            net,
            tokenizer,
            facts.read(file),
            split=split,
            canvas=canvas,
            sampling=sampling,
            correct=correct,
            job=job,
            **options,
        )
        trace_files.write(traces, outcomes, Path(snakemake.output[0]) / split)
