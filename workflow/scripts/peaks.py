"""Find the layers and the site where one model's MLPs have the largest effect, from its traces of one seed."""

import json
from pathlib import Path

from reversal.common import files, jobs
from reversal.storage import layers
from reversal.tracing import files as trace_files

with jobs.job(snakemake):
    folder = Path(snakemake.input.traces)
    traces = {split.name: trace_files.read(split) for split in sorted(folder.iterdir()) if split.is_dir()}
    peaks = layers.find_peaks(traces) | {"site": layers.find_site(traces)}
    with files.atomic(snakemake.output[0]) as file:
        file.write(json.dumps(peaks).encode())
