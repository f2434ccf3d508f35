"""Draw one figure."""

from importlib import import_module
from pathlib import Path

from reversal.common import jobs
from reversal.data import facts
from reversal.figures import read, style
from reversal.recall import files as completion_files
from reversal.tracing import files as trace_files

with jobs.job(snakemake):
    given, params, name = snakemake.input, snakemake.params, snakemake.params.figure
    draw = getattr(import_module(f"reversal.figures.{params.module}"), name)
    match name:
        case "reversal_curse":
            completions = read.each(completion_files.read, given.completions, params.trained)
            drawing = draw(completions, read.table(given.likelihood), models=params.models)
        case "denoising_step" | "timeline":
            completions = read.each(completion_files.read, given.completions, params.trained)
            rows = [row for file in given.rows for row in facts.read(file)]
            drawing = draw(completions, rows, **({"order": params.order} if name == "denoising_step" else {}))
        case "dataset":
            splits = {Path(file).stem: facts.read(file) for file in given.splits}
            drawing = draw(facts.read_facts(given.facts), facts.read(given.train), splits, protected=params.protected)
        case "training_curves":
            drawing = draw(read.each(read.table, given.history, params.trained), models=params.models)
        case "step_scaling":
            smdm = read.table(given.smdm) if given.smdm else None
            drawing = draw(read.table(given.table), models=params.models, published=smdm)
        case "trace_facts":
            roots = zip(params.models, map(Path, given.traces), strict=True)
            traces = {(model, part.name): trace_files.read(part) for model, root in roots for part in root.iterdir()}
            drawing = draw(traces, models=params.models)
        case "one_memory" | "known":
            drawing = draw(*map(read.table, given.tables), models=params.models)
        case _:
            drawing = draw(read.table(given.table), models=params.models)
    style.write(drawing.figure, snakemake.output.svg, snakemake.output.png)
    Path(snakemake.output.alt).write_text(f"{read.alt_text(given.words, name, drawing.says)}\n", encoding="utf-8")
