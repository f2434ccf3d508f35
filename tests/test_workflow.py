"""The workflow as its users run it: dry runs, the smoke study end to end, and what reruns when something changes."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

STUDIES = ["config.yaml", *sorted(str(path) for path in Path("studies").glob("*.yaml"))]


def snakemake(folder, *arguments, study="studies/smoke.yaml"):
    command = [sys.executable, "-m", "snakemake", "--cores", "2", *arguments, "--configfile", study]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def planned(folder, *arguments):
    """Which jobs a dry run would do: {rule: how often}."""
    done = snakemake(folder, "-n", *arguments)
    assert done.returncode == 0, done.stderr + done.stdout
    found = re.findall(r"^(\w+) +(\d+)$", done.stdout + done.stderr, re.M)
    return {rule: int(count) for rule, count in found if rule != "total"}


@pytest.fixture(scope="module")
def checkout(root, tmp_path_factory):
    """A copy of what git has or would take, where a study can run without touching the results here."""
    folder = tmp_path_factory.mktemp("checkout") / "project"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=root, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def smoke(checkout):
    """The smoke study, run once."""
    done = snakemake(checkout)
    assert done.returncode == 0, (done.stderr + done.stdout)[-6000:]
    return checkout


@pytest.mark.parametrize("study", STUDIES)
def test_every_study_dry_runs_without_torch(checkout, study):
    """A dry run needs no network, no GPU and none of the heavy libraries: they are made unimportable here."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'transformers', 'matplotlib', 'sklearn')));"
        "from snakemake.cli import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, "-n", "--cores", "all", "--configfile", study]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "This was a dry-run" in done.stdout + done.stderr or "Nothing to be done" in done.stdout + done.stderr


def test_a_dry_run_takes_seconds(checkout):
    """5 s are promised on a quiet machine; processor time does not count the neighbours'."""
    before = os.times()
    assert snakemake(checkout, "-n", study="config.yaml").returncode == 0
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 5


def test_the_smoke_study_leaves_every_table(smoke):
    tables = smoke / "results/smoke/tables"
    scaling = pd.read_csv(tables / "step_scaling.csv")
    assert set(scaling.model) == {"mdm", "ar"} and set(scaling.split) == {
        "d2p_same",
        "d2p_reverse",
        "p2d_same",
        "p2d_reverse",
    }
    assert scaling[(scaling.model == "ar") & scaling.split.str.endswith("same")].correct.sum() > 0
    for name in ("recall_differences", "likelihood", "probe", "causal_trace", "traced_facts"):
        assert len(pd.read_csv(tables / f"{name}.csv")), name


def test_a_finished_study_has_nothing_to_do(smoke):
    assert planned(smoke) == {}


def test_a_deleted_split_is_made_again_and_no_other(smoke):
    file = smoke / "results/smoke/data/both_p2d.jsonl"
    content = file.read_bytes()
    file.unlink()
    jobs = planned(smoke, str(file.relative_to(smoke)))
    assert jobs == {"prepare": 1}
    assert snakemake(smoke, str(file.relative_to(smoke))).returncode == 0
    assert file.read_bytes() == content


def test_editing_the_generator_reruns_the_data_stage(smoke):
    module = smoke / "workflow/reversal/generate.py"
    original, times = module.read_bytes(), module.stat()
    try:
        module.write_bytes(original + b"\n# changed\n")
        assert planned(smoke)["prepare"] >= 6
    finally:
        module.write_bytes(original)
        os.utime(module, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_editing_the_sampler_does_not_retrain(smoke):
    module = smoke / "workflow/reversal/diffusion.py"
    original, times = module.read_bytes(), module.stat()
    try:
        module.write_bytes(original + b"\n# changed\n")
        jobs = planned(smoke)
        assert "complete" in jobs and "finetune" not in jobs
    finally:
        module.write_bytes(original)
        os.utime(module, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_one_rule_can_be_forced_alone(smoke):
    jobs = planned(smoke, "--forcerun", "score")
    assert jobs.get("score") == 1 and "finetune" not in jobs and "complete" not in jobs


def test_bad_data_stop_the_rule_with_file_line_and_reason(checkout, tmp_path):
    words = tmp_path / "words"
    shutil.copytree(checkout / "data/words", words)
    (words / "roles.txt").write_text("baker\nbaker\n")
    study = tmp_path / "bad.yaml"
    study.write_text(json.dumps({"study": "bad", "data": {"generated": {"words": str(words)}}}))
    done = snakemake(checkout, "results/bad/data/facts.jsonl", study=str(study))
    assert done.returncode != 0
    assert "roles.txt: 'baker' occurs twice" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (checkout / "results/bad/data/facts.jsonl").exists()


def test_the_workflow_is_lint_free(checkout):
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--lint"], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
