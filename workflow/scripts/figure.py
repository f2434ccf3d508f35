"""Draw one figure."""

from pathlib import Path

from reversal import figures
from reversal.common import jobs
from reversal.data import facts
from reversal.figures import read
from reversal.recall import files as completion_files
from reversal.tracing import files as trace_files

with jobs.job(snakemake):
    given, params = snakemake.input, snakemake.params
    name = snakemake.rule.removeprefix("figure_").removeprefix("kept_")
    match name:
        case "reversal_curse":
            completions = read.each(completion_files.read, given.completions, params.trained)
            drawing = figures.reversal_curse(completions, read.table(given.likelihood), models=params.models)
        case "canvas" | "denoising_step" | "timeline":
            completions = read.each(completion_files.read, given.completions, params.trained)
            rows = [row for file in given.rows for row in facts.read(file)]
            how = {"order": params.order} if name == "denoising_step" else {}
            drawing = getattr(figures, name)(completions, rows, **how)
        case "dataset":
            splits = {Path(file).stem: facts.read(file) for file in given.splits}
            drawing = figures.dataset(facts.read_facts(given.facts), facts.read(given.train), splits)
        case "training_curves":
            history = read.each(read.table, given.history, params.trained)
            drawing = figures.training_curves(history, models=params.models)
        case "step_scaling":
            published = read.table(given.published) if given.published else None
            drawing = figures.step_scaling(read.table(given.scaling), models=params.models, published=published)
        case "trace_facts":
            roots = zip(params.models, map(Path, given.traces), strict=True)
            traces = {(model, part.name): trace_files.read(part) for model, root in roots for part in root.iterdir()}
            drawing = figures.trace_facts(traces, models=params.models)
        case _:
            drawing = getattr(figures, name)(read.table(given.table), models=params.models)
    figures.write(drawing.figure, snakemake.output.svg, snakemake.output.png)
    words = read.alt_text(given.words, name, drawing.says)
    Path(snakemake.output.alt).write_text(words + "\n", encoding="utf-8")
