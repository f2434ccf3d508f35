"""Studies on a real Slurm: grouped jobs, a node that dies during a job, and the number of Slurm jobs."""

import re
import shutil
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest
import slurm_lab
import study_fixtures
import yaml

from reversal.paper import costs

TIMEOUT = 900  # seconds
# Snakemake that asks Slurm for the status every second; by default the interval grows by ten seconds each time.
POLL_EVERY_SECOND = """
from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor
Executor.next_seconds_between_status_checks = property(lambda self: 1, lambda self, seconds: None)
main()
"""
SEED_OUTPUTS = ["likelihood/ar/seed_1.csv", "keyvalue/ar/seed_1", "rank_one_edits/ar/seed_1.csv"]
SEED_OUTPUTS += ["finetuned_edits/ar/seed_1.csv"]


@pytest.fixture(scope="module")
def lab():
    if reason := slurm_lab.find_obstacle():
        pytest.skip(reason)
    with slurm_lab.Lab() as running:
        yield running


def command(*targets, profile, study="studies/smoke.yaml"):
    arguments = ["--profile", f"profiles/{profile}", "--jobs", "8", "--max-threads", "1", "--latency-wait", "5"]
    python, _, _, *words = study_fixtures.command(*targets, *arguments, study=study, cores=None)
    return [python, "-c", POLL_EVERY_SECOND, *words]


def wait_for_second_training(running, folder):
    """Wait until one training has ended and another has started."""
    first = study_fixtures.wait_for_job(running.poll, "finetune.py", folder)
    while Path(f"/proc/{first}").exists():
        time.sleep(0.1)
    study_fixtures.wait_for_job(running.poll, "finetune.py", folder)


def test_a_grouped_study_finishes_on_slurm_although_a_node_dies(lab, root, tmp_path, tmp_path_factory):
    """One model is fine-tuned with two seeds, and all further jobs of the first seed run again."""
    folder = study_fixtures.copy_study(study_fixtures.run_smoke_study(root, tmp_path_factory), tmp_path / "project")
    study_fixtures.remove_model(folder, "ar")
    shutil.rmtree(folder / "results/smoke/benchmarks")  # of the run without Slurm
    study = tmp_path / "seeds.yaml"
    study.write_text(yaml.safe_dump(yaml.safe_load((root / "studies/smoke.yaml").read_text()) | {"seeds": [1, 2]}))
    targets = [f"results/smoke/{name}" for name in (*SEED_OUTPUTS, "keyvalue/ar/base", "models/ar/seed_2")]
    log = tmp_path / "log"
    with log.open("w") as output:
        words = command(*targets, profile="slurm-many", study=str(study))
        running = subprocess.Popen(words, cwd=folder, env=lab.environment, stdout=output, stderr=output)
    try:
        wait_for_second_training(running, folder)
        (job,) = [job for job, comment in lab.running().items() if "train_ar" in comment]
        lab.fail(job)
        seen, end = set(), time.monotonic() + TIMEOUT
        while running.poll() is None and time.monotonic() < end:
            seen |= lab.queue()
            time.sleep(0.5)
        assert running.poll() == 0, log.read_text()[-4000:]
    finally:
        if running.poll() is None:
            running.terminate()
            running.wait(60)
    requests = {}
    for comment, *resources in seen:
        requests.setdefault(re.match(r"rule_(\w+)_ar_", comment)[1], set()).add(tuple(resources))
    assert requests == {  # the memory and GPU of one job, the time of all; twice as much after the node's death
        "train": {("8000M", "20:00", "gres:gpu:1"), ("16000M", "40:00", "gres:gpu:1")},
        "recall": {("8000M", "20:00", "gres:gpu:1")},
        "trace": {("8000M", "10:00", "gres:gpu:1")},
        "analysis": {("8000M", "40:00", "gres:gpu:1")},
    }
    assert "Trying to restart job" in log.read_text()
    assert ["train_ar" in comment for comment, *_ in lab.queue("node_fail")] == [True]
    assert all((folder / target).exists() for target in targets)
    names = ("step_scaling", "likelihood", "causal_trace", "symmetry", "rank_one_edits")
    tables = [f"results/smoke/tables/{name}.csv" for name in names]
    for table in tables:
        (folder / table).unlink()
    done = subprocess.run(
        command(*tables, profile="slurm"), cwd=folder, env=lab.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert {comment for comment, *_ in lab.queue("all")} - {comment for comment, *_ in seen} == {"rule_symmetry"}
    assert study_fixtures.count_planned_jobs(folder, *tables) == {}
    assert all(len(pd.read_csv(folder / table)) for table in tables)
    # The costs of jobs that ran on the nodes are known, too.
    job_costs = costs.table(folder / "results/smoke", models=["ar"], core_watts=10, gpu_watts=700)
    job_costs = job_costs[job_costs.model == "ar"].set_index("rule")
    assert {"finetune", "complete", "trace", "rank_one_edits"} <= {*job_costs.index}
    assert (job_costs.cpu_seconds > 0).all() and (job_costs.watt_hours >= 0).all()


def test_five_seeds_of_nine_objectives_are_tens_of_slurm_jobs(root, tmp_path):
    """By a dry run: a job that is neither in a group nor of a local rule is a Slurm job of its own."""
    shared = {"family": "diffusion", "base": "folder", "folder": "data/base/mdm"}
    models = {
        f"exposure-{exposure}": {**shared, "objective": {"protect": "subject", "exposure": exposure / 100}}
        for exposure in range(7)
    }
    study = tmp_path / "many.yaml"
    study.write_text(yaml.safe_dump({"study": "many", "seeds": [1, 2, 3, 4, 5], "models": models}))
    folder = study_fixtures.copy_project(root, tmp_path / "project")
    done = study_fixtures.snakemake(folder, "-n", "--profile", "profiles/slurm-many", study=str(study), cores=None)
    assert done.returncode == 0, done.stderr
    output = done.stdout + done.stderr
    texts = "".join(file.read_text() for file in (root / "workflow/rules").glob("*.smk"))
    rules = {rule.split(":")[0][5:]: "localrule: True" in rule for rule in re.split(r"^(?=rule )", texts, flags=re.M)}
    ungrouped = [rule for rule in re.findall(r"^rule (\w+):", output, re.M) if rules.get(rule) is False]
    groups = re.findall(r"Group job (\w+)_", output)
    assert ungrouped == ["symmetry"] and {name: groups.count(name) for name in groups} == dict.fromkeys(
        ("train", "recall", "trace", "analysis"), 9
    )
    assert len(re.findall(r"^ +rule \w+:", output, re.M)) > 300
