"""Find the layers, and the site, where one model's MLPs matter most, by its traces of one seed."""

import json
from pathlib import Path

from reversal.common import files, jobs
from reversal.storage import layers
from reversal.tracing import files as trace_files

with jobs.job(snakemake):
    folder = Path(snakemake.input.traces)
    traces = {split.name: trace_files.read(split) for split in sorted(folder.iterdir()) if split.is_dir()}
    peaks = layers.peaks(traces) | {"site": layers.site(traces)}
    with files.atomic(snakemake.output[0]) as file:
        file.write(json.dumps(peaks).encode())
