"""Draw one figure."""

from importlib import import_module
from pathlib import Path

from reversal.common import jobs
from reversal.figures import read, style
from reversal.figures.inputs import read_input

with jobs.job(snakemake):
    params = snakemake.params
    module, function = params.function.split(".")
    draw = getattr(import_module(f"reversal.figures.{module}"), function)
    drawing = draw(*(read_input(kind, getattr(snakemake.input, kind)) for kind in params.inputs), **params.options)
    style.write(drawing.figure, snakemake.output.svg, snakemake.output.png)
    alt = read.fill_alt_text(params.figure, params.alt, drawing.alt_values)
    Path(snakemake.output.alt).write_text(f"{alt}\n", encoding="utf-8")
