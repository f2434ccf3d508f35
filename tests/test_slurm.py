"""The smoke study on a real Slurm, with one of its jobs killed on the way."""

import os
import shutil
import signal
import subprocess
import time

import pandas as pd
import pytest
import slurm_lab
import studying

from reversal.paper import costs

PATIENCE = 900  # seconds


@pytest.fixture(scope="module")
def lab():
    if reason := slurm_lab.unavailable():
        pytest.skip(reason)
    with slurm_lab.Lab() as running:
        yield running


def test_a_study_finishes_on_slurm_though_a_job_is_killed(lab, root, tmp_path, tmp_path_factory):
    """One model is fine-tuned, and with that every kind of job that a cluster gets runs again."""
    folder = studying.duplicate(studying.finished(root, tmp_path_factory), tmp_path / "project")
    studying.forget(folder, "ar")
    arguments = ["--profile", "profiles/slurm", "--jobs", "8", "--max-threads", "1", "--latency-wait", "5"]
    arguments += ["--seconds-between-status-checks", "2", "--slurm-init-seconds-before-status-checks", "3"]
    # Every job that a cluster gets; figures and the page are made where Snakemake runs.
    names = ("step_scaling", "likelihood", "probe", "causal_trace", "symmetry", "edits")
    tables = [f"results/smoke/tables/{name}.csv" for name in names]
    for table in tables:
        (folder / table).unlink()
    shutil.rmtree(folder / "results/smoke/benchmarks")  # of the first run
    first = studying.planned(folder, *tables)
    assert {
        "finetune",
        "complete",
        "compare_likelihoods",
        "probe",
        "trace",
        "keyvalue",
        "symmetry",
        "edit",
    } <= first.keys()
    command = studying.command(*tables, *arguments, cores=None)
    log = tmp_path / "log"
    with log.open("w") as output:
        running = subprocess.Popen(command, cwd=folder, env=lab.environment, stdout=output, stderr=output)
    try:
        victim = studying.wait_for_job(running, "finetune.py", folder)
        os.kill(victim, signal.SIGKILL)
        seen, end = set(), time.monotonic() + PATIENCE
        while running.poll() is None and time.monotonic() < end:
            seen |= lab.queue()
            time.sleep(0.5)
        assert running.poll() == 0, log.read_text()[-4000:]
    finally:
        if running.poll() is None:
            running.terminate()
            running.wait(60)
    asked = {(memory, time, gpus) for comment, memory, time, gpus in seen if "finetune" in comment}
    assert asked == {("24000M", "4:00:00", "gres:gpu:1"), ("48000M", "8:00:00", "gres:gpu:1")}  # the second, again
    assert "Trying to restart job" in log.read_text()
    assert studying.planned(folder, *tables) == {}
    assert all(len(pd.read_csv(folder / table)) for table in tables)
    # What jobs cost is known of those that ran elsewhere, too.
    jobs = [f"{rule}/ar/seed_1" for rule in ("finetune", "complete", "trace", "edit")]
    found = costs.table(folder / "results/smoke", jobs, models=["ar"], core_watts=10, gpu_watts=700)
    assert (found.measured == 1).all() and (found.cpu_seconds > 0).all() and (found.watt_hours >= 0).all()
