"""What a run cost: time, memory, and an estimate of energy. Measured by Snakemake, and logged by the jobs."""

import re
from pathlib import Path

import pandas as pd

SUMS = ["jobs", "measured", "seconds", "cpu_seconds", "gpu_seconds"]
PEAKS = ["memory_gib", "gpu_gib"]
COLUMNS = ["rule", "model", *SUMS, *PEAKS, "watt_hours"]
# Snakemake looks at a job every half minute only: what the job writes to its log is more exact.
LOG_PATTERNS = {
    "memory_gib": re.compile(r"(?<!GPU )memory: at most ([\d.]+) GiB"),
    "cpu_seconds": re.compile(r"CPU time: ([\d.]+) s"),
    "gpu_gib": re.compile(r"GPU memory: at most ([\d.]+) GiB"),
    "gpu_seconds": re.compile(r"GPU time: at most ([\d.]+) s"),
}


def table(results, jobs, *, models, core_watts, gpu_watts):
    """A row for each rule and model, in the order of the jobs: sums over its jobs, and the most memory that one had.

    `jobs` are names like "finetune/mdm/seed_1" or "symmetry": the rule, then what it was about; a job of none of the
    `models` has an empty model. Some may not have been `measured`. A GPU's memory is missing where none was used.
    """
    rows = [_about(job, models) | (_measured(Path(results), job) or {}) for job in jobs]
    by_rule = pd.DataFrame(rows, columns=COLUMNS[:-1]).groupby(["rule", "model"], sort=False)
    found = by_rule[SUMS].sum().join(by_rule[PEAKS].max()).reset_index()
    joules = core_watts * found.cpu_seconds + gpu_watts * found.gpu_seconds
    return found.assign(watt_hours=joules / 3600).round(2).astype({"jobs": int, "measured": int})


def _about(job, models):
    rule, *about = job.split("/")
    return {"rule": rule, "model": next((part for part in about if part in models), ""), "jobs": 1, "measured": 0}


def _measured(results, job):
    """What one job cost; None where its benchmark file is gone."""
    benchmark, log = results / f"benchmarks/{job}.tsv", results / f"logs/{job}.log"
    if not benchmark.is_file():
        return None
    seen = pd.read_csv(benchmark, sep="\t", usecols=["s", "max_rss", "cpu_time"], na_values="-").fillna(0).iloc[-1]
    lines = log.read_text(encoding="utf-8") if log.is_file() else ""
    logged = {column: max(map(float, line.findall(lines)), default=None) for column, line in LOG_PATTERNS.items()}
    return {
        "measured": 1,
        "seconds": seen.s,
        "cpu_seconds": max(seen.cpu_time, logged["cpu_seconds"] or 0),
        "gpu_seconds": logged["gpu_seconds"] or 0,
        "memory_gib": max(seen.max_rss / 1024, logged["memory_gib"] or 0),
        "gpu_gib": logged["gpu_gib"],
    }
