"""What a run cost: time, memory, and an estimate of energy. Measured by Snakemake, and logged by the jobs."""

import re
from pathlib import Path

import pandas as pd

SUMS = ["jobs", "seconds", "cpu_seconds", "gpu_seconds"]
PEAKS = ["memory_gib", "gpu_gib"]
COLUMNS = ["rule", "model", *SUMS, *PEAKS, "watt_hours"]
# Snakemake looks at a job every half minute only: what the job writes to its log is more exact.
LOG_PATTERNS = {
    "memory_gib": re.compile(r"(?<!GPU )memory: at most ([\d.]+) GiB"),
    "cpu_seconds": re.compile(r"CPU time: ([\d.]+) s"),
    "gpu_gib": re.compile(r"GPU memory: at most ([\d.]+) GiB"),
    "gpu_seconds": re.compile(r"GPU time: at most ([\d.]+) s"),
}


def table(results, *, models, core_watts, gpu_watts):
    """A row for each rule and model: sums over its jobs, and the most memory that one of them had.

    The jobs are those with a file in benchmarks/, such as "finetune/mdm/seed_1" or "symmetry": the rule, then what it
    was about; a job of none of the `models` has an empty model. A GPU's memory is missing where none was used.
    """
    rows = [_measure_job(file, Path(results), models) for file in sorted(Path(results, "benchmarks").rglob("*.tsv"))]
    by_rule = pd.DataFrame(rows, columns=COLUMNS[:-1]).groupby(["rule", "model"], sort=False)
    found = by_rule[SUMS].sum().join(by_rule[PEAKS].max()).reset_index()
    joules = core_watts * found.cpu_seconds + gpu_watts * found.gpu_seconds
    return found.assign(watt_hours=joules / 3600).round(2).astype({"jobs": int})


def _measure_job(benchmark, results, models):
    """What the job of one benchmark file cost."""
    job = benchmark.relative_to(results / "benchmarks").with_suffix("")
    log = results / "logs" / job.with_suffix(".log")
    measured = pd.read_csv(benchmark, sep="\t", usecols=["s", "max_rss", "cpu_time"], na_values="-").fillna(0).iloc[-1]
    lines = log.read_text(encoding="utf-8") if log.is_file() else ""
    logged = {column: max(map(float, line.findall(lines)), default=None) for column, line in LOG_PATTERNS.items()}
    return {
        "rule": job.parts[0],
        "model": next((part for part in job.parts[1:] if part in models), ""),
        "jobs": 1,
        "seconds": measured.s,
        "cpu_seconds": max(measured.cpu_time, logged["cpu_seconds"] or 0),
        "gpu_seconds": logged["gpu_seconds"] or 0,
        "memory_gib": max(measured.max_rss / 1024, logged["memory_gib"] or 0),
        "gpu_gib": logged["gpu_gib"],
    }
