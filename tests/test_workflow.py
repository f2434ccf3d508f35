"""The workflow as users run it: dry runs, the smoke study end to end, and the jobs that a change reruns."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path

import fork_server
import pandas as pd
import pytest
import torch
import yaml
from snakemake.utils import update_config
from study_fixtures import (
    command,
    copy_project,
    copy_study,
    count_planned_jobs,
    list_planned_jobs,
    remove_model,
    run_smoke_study,
    snakemake,
    start_snakemake,
    wait_for_job,
)

from reversal.common import closure
from reversal.study import resolve

ROOT = Path(__file__).resolve().parent.parent
STUDIES = ["config.yaml", *sorted(f"studies/{path.name}" for path in (ROOT / "studies").glob("*.yaml"))]


SMOKE = yaml.safe_load((ROOT / "studies/smoke.yaml").read_text())


@pytest.fixture(scope="module")
def checkout(root, tmp_path_factory):
    return copy_project(root, tmp_path_factory.mktemp("checkout") / "project")


@pytest.fixture(scope="module")
def smoke(root, tmp_path_factory):
    """The finished smoke study, moved to another folder."""
    return copy_study(run_smoke_study(root, tmp_path_factory), tmp_path_factory.mktemp("moved") / "elsewhere")


@pytest.mark.parametrize("study", STUDIES)
def test_every_study_dry_runs_without_torch(checkout, study):
    """A dry run loads no network and none of the large libraries: they cannot be imported here."""
    done = snakemake(checkout, "-n", study=study, without=("torch", "transformers", "matplotlib", "sklearn"))
    assert done.returncode == 0, done.stderr
    assert "This was a dry-run" in done.stdout + done.stderr or "Nothing to be done" in done.stdout + done.stderr


def test_a_model_with_other_noise_than_masks_is_tested_for_recall_only(checkout):
    done = snakemake(checkout, "-n", "results/objectives/tables/causal_trace.csv", study="studies/objectives.yaml")
    assert done.returncode != 0
    assert (
        "models.mdm-time-conditioned.objective.time_conditioning is embedded; only recall can be measured"
        in done.stderr
    )


def test_tables_figures_and_post_import_no_network(root):
    """Importing PyTorch and transformers takes seven seconds, and a table two."""
    modules = ["recall.tables", "tracing.tables", "storage.tables", "figures", "paper.write"]
    code = "import sys; " + "; ".join(f"import reversal.{module}" for module in modules)
    code += "; sys.exit(not {'torch', 'transformers'}.isdisjoint(sys.modules))"
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)


def test_a_dry_run_takes_seconds(checkout):
    """The budget is 3 s on an idle machine, 1.7 times Snakemake's start; a busy machine slows both."""

    def cpu_seconds(*line):
        before = os.times()
        subprocess.run(line, cwd=checkout, capture_output=True, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    start = [sys.executable, "-m", "snakemake", "--version"]
    runs = [(cpu_seconds(*command("-n", study="config.yaml")), cpu_seconds(*start)) for _ in range(2)]
    dry_run, bare_start = map(min, zip(*runs, strict=True))
    assert dry_run < 2.2 * bare_start


def test_results_can_be_stored_in_a_bucket(checkout, tmp_path):
    """As on Kubernetes: the project's own files are local, and results are in the storage."""
    storage = ["--default-storage-provider", "fs", "--default-storage-prefix", str(tmp_path)]
    done = snakemake(checkout, "-n", *storage, "--shared-fs-usage", "none")
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/results/smoke/tables/step_scaling.csv" in done.stdout + done.stderr


def test_the_smoke_study_makes_every_table(smoke):
    tables = smoke / "results/smoke/tables"
    scaling = pd.read_csv(tables / "step_scaling.csv")
    assert set(scaling.model) == {"mdm", "ar"} and set(scaling.split) == {
        "d2p_same",
        "d2p_reverse",
        "p2d_same",
        "p2d_reverse",
    }
    assert scaling[(scaling.model == "ar") & scaling.split.str.endswith("same")].correct.sum() > 0
    for name in ("recall_differences", "likelihood", "causal_trace", "traced_facts"):
        assert len(pd.read_csv(tables / f"{name}.csv")), name


@pytest.fixture(scope="module")
def interrupted(smoke, root, tmp_path_factory):
    """One model of the smoke study made again with jobs and Snakemake killed: the folder, and a refused second run.

    Its jobs are forks of another server than those of the study, so that hashes are not equal by chance.
    """
    folder = copy_study(run_smoke_study(root, tmp_path_factory), tmp_path_factory.mktemp("interrupted") / "project")
    tables = [str(table) for table in computed_tables(smoke)]
    remove_model(folder, "mdm")
    shutil.rmtree(folder / "results/smoke/logs")  # of the first run
    for table in tables:
        (folder / table).unlink()
    server, outputs = fork_server.start(), (folder / "stdout", folder / "stderr")

    def run_tables():
        return start_snakemake(folder, command(*tables), outputs, server)

    def wait_for_exit(process):
        process.join(600)
        return process.exitcode

    training = run_tables()
    job = wait_for_job(lambda: training.exitcode, "finetune.py", folder)
    wait_for_line(folder / "results/smoke/logs/finetune", "steps")
    os.kill(job, signal.SIGSTOP)  # so that it does not end while the second run is refused
    second = snakemake(folder)
    os.kill(job, signal.SIGKILL)
    assert wait_for_exit(training) == 1
    tracing = run_tables()
    job = wait_for_job(lambda: tracing.exitcode, "trace.py", folder)
    wait_for_line(folder / "results/smoke/logs/trace", "facts")
    os.kill(job, signal.SIGKILL)
    assert wait_for_exit(tracing) == 1
    killed = run_tables()
    wait_for_job(lambda: killed.exitcode, "keyvalue.py", folder)
    killed.kill()
    assert wait_for_exit(killed) == -signal.SIGKILL
    assert wait_for_exit(run_tables()) == 0, outputs[1].read_text()[-6000:]
    server.communicate()  # ends it
    return folder, second


def computed_tables(folder):
    """The tables of a finished smoke study, except the costs, which differ from run to run."""
    tables = (folder / "results/smoke/tables").glob("*.csv")
    return sorted(table.relative_to(folder) for table in tables if table.stem != "costs")


def wait_for_line(folder, word, timeout=120):
    """Wait until a log in a folder has a line with a word."""
    deadline = time.monotonic() + timeout
    while not any(word in log.read_text() for log in folder.rglob("*.log")):
        assert time.monotonic() < deadline, f"no line with {word!r} in {folder}"
        time.sleep(0.05)


def test_killed_jobs_and_a_killed_snakemake_change_no_table(smoke, interrupted):
    folder, _ = interrupted
    names = computed_tables(smoke)
    assert len(names) > 10
    for name in names:
        assert (folder / name).read_bytes() == (smoke / name).read_bytes(), name


@pytest.mark.slow
def test_two_fresh_runs_of_the_default_study_give_the_same_tables(root, tmp_path):
    runs = []
    for name in ("one", "two"):
        folder = copy_project(root, tmp_path / name)
        done = snakemake(folder, study="config.yaml", cores="all")
        assert done.returncode == 0, (done.stderr + done.stdout)[-6000:]
        tables = (folder / "results/default/tables").glob("*.csv")
        runs.append({file.name: file.read_bytes() for file in tables if file.stem != "costs"})
    assert len(runs[0]) > 10 and runs[0] == runs[1]


def test_a_second_run_of_a_study_is_refused_with_the_reason(interrupted):
    _, second = interrupted
    assert second.returncode != 0
    assert "error: study smoke is being run by another snakemake in this folder" in second.stderr
    assert "Traceback" not in second.stderr


@contextmanager
def changed_file(file, content):
    """A context in which a file has another content."""
    before, times = file.read_bytes(), file.stat()
    try:
        file.write_bytes(content(before))
        yield times
    finally:
        file.write_bytes(before)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_damaged_input_stops_the_job_that_reads_it(smoke):
    file = smoke / "results/smoke/tables/likelihood.csv"
    with changed_file(file, lambda content: content.replace(b"0", b"1", 1)) as times:
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        done = snakemake(smoke, "--forcerun", "sortable")
        assert done.returncode != 0
        assert "error: results/smoke/tables/likelihood.csv changed since it was made" in done.stderr
    assert snakemake(smoke).returncode == 0


def test_a_table_edited_by_hand_reruns_only_what_depends_on_it(smoke):
    os.utime(smoke / ".snakemake/hashes/results/smoke/tables/likelihood.csv.json", (0, 0))  # as if made long ago
    with changed_file(smoke / "results/smoke/tables/likelihood.csv", lambda content: content.replace(b"0", b"1", 1)):
        planned = {"all", "figure_reversal_curse", "costs", "page", "post", "sortable"}
        assert set(count_planned_jobs(smoke)) == planned
        done = snakemake(smoke)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "likelihood.csv was changed after it was made; it is used as it is" in done.stderr
    assert snakemake(smoke, "--forcerun", "sortable", "figure_reversal_curse").returncode == 0


def test_the_costs_have_every_job_except_those_that_write_the_post(smoke):
    costs = pd.read_csv(smoke / "results/smoke/tables/costs.csv")
    assert (costs.cpu_seconds > 0).all() and (costs.memory_gib > 0).all()
    jobs = {str(log.relative_to(smoke / "results/smoke/logs")) for log in (smoke / "results/smoke/logs").rglob("*.log")}
    unmeasured = {f"{rule}.log" for rule in ("costs", "evaluate_claims", "page", "post", "sortable")}
    assert costs.jobs.sum() == len(jobs - unmeasured)


def test_a_finished_study_that_was_moved_has_nothing_to_do(smoke):
    assert count_planned_jobs(smoke) == {}


def count_jobs_after_edit(folder, *patterns):
    """The jobs that are planned when the modules that match the patterns have one more comment."""
    modules = [module for pattern in patterns for module in (folder / "workflow/reversal").glob(pattern)]
    assert len(modules) >= len(patterns)
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(changed_file(module, lambda content: content + b"\n# changed\n"))
        return count_planned_jobs(folder)


def network_rules(root):
    """The rules whose scripts load or train a network."""
    names = set()
    for file in (root / "workflow/rules").glob("*.smk"):
        for rule in re.split(r"^(?=rule )", file.read_text(), flags=re.M)[1:]:
            name, script = re.match(r"rule (\w+):", rule)[1], re.search(r'"\.\./(scripts/\w+\.py)"', rule)
            code = (root / "workflow" / script[1]).read_text() if script else ""
            if "network.load(" in code or "loop.run(" in code or "pretrain(" in code:
                names.add(name)
    assert len(names) >= 9
    return names


def test_the_sampler_is_code_of_completions_and_the_objective_of_training(root):
    code = {name: closure.code_of(root / f"workflow/scripts/{name}.py") for name in ("complete", "finetune")}
    sampler, objective = (closure.PACKAGE / name for name in ("recall/masked.py", "training/objective.py"))
    assert sampler in code["complete"] and sampler not in code["finetune"]
    assert objective in code["finetune"] and objective not in code["complete"]


def test_editing_tables_figures_or_the_post_runs_no_network(smoke):
    jobs = count_jobs_after_edit(smoke, "*/tables.py", "figures/*.py", "paper/*.py")
    assert {"score", "aggregate", "symmetry", "figure_rank_one_edits", "post"} <= jobs.keys()
    assert jobs.keys().isdisjoint(network_rules(smoke))


def test_editing_code_that_logs_or_downloads_reruns_nothing(smoke):
    modules = ("common/jobs.py", "common/errors.py", "common/download.py", "models/hub.py")
    assert count_jobs_after_edit(smoke, *modules) == {}


@pytest.fixture
def changed_study(tmp_path):
    """A function that writes the smoke study with some keys changed to a file outside the project."""

    def write(**changes):
        study = deepcopy(SMOKE)
        update_config(study, changes)
        (tmp_path / "changed.yaml").write_text(yaml.safe_dump(study))
        return str(tmp_path / "changed.yaml")

    return write


def test_the_order_of_a_study_s_keys_changes_nothing(smoke, changed_study):
    """The changed study has its keys sorted."""
    assert count_planned_jobs(smoke, study=changed_study()) == {}


def test_a_setting_of_the_sampler_reruns_no_autoregressive_job(smoke, changed_study):
    jobs = list_planned_jobs(smoke, study=changed_study(sampling={"steps": [1, 8], "guidance": 0.4}))
    assert {"model": "mdm", "seed": "1"} in jobs["complete"]
    assert all(job["model"] == "mdm" for rule in network_rules(smoke) for job in jobs.get(rule, []))


@pytest.mark.parametrize(
    ("model", "settings"), [("ar", {"canvas": 30}), ("mdm", {"canvas": 30, "training": {"width": 30}})]
)
def test_the_canvas_and_width_of_a_model_rerun_no_other_model(smoke, changed_study, model, settings):
    jobs = list_planned_jobs(smoke, study=changed_study(models={model: settings}))
    assert {job["model"] for rule in network_rules(smoke) for job in jobs.get(rule, [])} == {model}
    assert ("finetune" in jobs) == ("training" in settings)


def test_a_second_seed_reruns_neither_the_first_nor_the_bases(smoke, changed_study):
    jobs = list_planned_jobs(smoke, study=changed_study(seeds=[1, 2]))
    for rule in network_rules(smoke) & jobs.keys():
        assert all("2" in (job.get("seed"), job.get("stage", "").removeprefix("seed_")) for job in jobs[rule]), rule
    assert len(jobs["keyvalue"]) == len(jobs["finetune"]) == 2


KEYS_AND_VALUES, EDITS = "results/smoke/keyvalue/mdm/seed_1", "results/smoke/rank_one_edits/mdm/seed_1.csv"


@pytest.mark.parametrize(
    ("layers", "targets", "needs_peaks"),
    [("all", [KEYS_AND_VALUES, EDITS], False), ([0], [KEYS_AND_VALUES], True), ([0], [EDITS], True)],
    ids=["all layers", "keys and values", "edits"],
)
def test_jobs_depend_on_peaks_only_if_the_layers_include_them(checkout, changed_study, layers, targets, needs_peaks):
    keyvalue = {**SMOKE["keyvalue"], "layers": layers, "value_layers": layers}
    study = changed_study(keyvalue=keyvalue, rank_one_edits={**SMOKE["rank_one_edits"], "layers": layers})
    jobs = count_planned_jobs(checkout, *targets, study=study)
    assert "finetune" in jobs and ("peaks" in jobs) == needs_peaks


READERS = {  # {local file: the rules that read it}
    "data/words/roles.txt": {"prepare"},
    "data/templates/p2d.txt": {"prepare"},
    "data/base/ar/model.safetensors": {"base_folder"},
    "data/base/ar/tokenizer.json": {"base_folder"},
}


def test_a_changed_byte_of_a_local_file_reruns_the_rules_that_read_it(smoke):
    with ExitStack() as stack:
        for name in READERS:
            stack.enter_context(changed_file(smoke / name, lambda content: content[:-1] + bytes([content[-1] ^ 1])))
        done = snakemake(smoke, "-n")
    pattern = r"rule (\w+):\n(?:    .*\n)*?    reason: .*Updated input files: ([^\n;]*)"
    reasons = re.findall(pattern, done.stdout + done.stderr)
    assert {name: {rule for rule, files in reasons if name in files} for name in READERS} == READERS


CHECKPOINT = {"weights": "mdm.safetensors", "tokenizer": "tokenizer.json"}


def test_each_file_of_a_user_s_rows_and_checkpoints_is_an_input(checkout, tmp_path):
    """The time of a folder would not change with its files."""
    names = {"train": "train.jsonl", "tests": "tests.jsonl"}
    for name in (*names.values(), "p2d.txt", "d2p.txt"):
        (tmp_path / name).write_text("x\n")
    rows = {key: str(tmp_path / name) for key, name in names.items()} | {"templates": str(tmp_path)}
    (tmp_path / "mdm.safetensors").write_bytes(b"x")
    (tmp_path / "tokenizer.json").write_text("{}")
    source = {part: {"path": str(tmp_path / file)} for part, file in CHECKPOINT.items()}
    study = {
        "study": "own",
        "data": {"source": "rows", "rows": rows},
        "models": {"mdm": {"family": "diffusion", "base": "lit_gpt", "lit_gpt": {**source, "n_head": 4}}},
    }
    (tmp_path / "own.yaml").write_text(json.dumps(study))
    targets = ("results/own/models/mdm/base", "results/own/data/facts.jsonl")
    done = snakemake(checkout, "-n", *targets, study=str(tmp_path / "own.yaml"))
    assert done.returncode == 0, done.stderr
    output = done.stdout + done.stderr
    for name in [*names.values(), "p2d.txt", "d2p.txt", *CHECKPOINT.values()]:
        assert str(tmp_path / name) in output, name


def test_settings_on_the_command_line_are_parsed_as_yaml_and_merged_into_the_study(checkout):
    wrong = snakemake(checkout, "-n", "--config", "sampling={guidance: much}")
    assert wrong.returncode != 0 and "Traceback" not in wrong.stderr
    assert "error: --config: sampling.guidance is 'much'; allowed: a number from 0 up" in wrong.stderr


def test_running_in_another_folder_says_that_there_is_no_configuration(checkout, tmp_path):
    """Snakemake looks for config.yaml in the folder in which it runs."""
    command = [sys.executable, "-m", "snakemake", "-n", "--cores", "1", "-s", str(checkout / "Snakefile")]
    command += ["--configfile", str(checkout / "studies/smoke.yaml")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert (
        "error: there is no config.yaml here; run snakemake in the project's folder, or use --directory" in done.stderr
    )


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


def test_a_canvas_that_is_too_small_is_rejected_before_the_first_job(smoke, changed_study):
    done = snakemake(smoke, "--forcerun", "finetune", study=changed_study(sampling={"steps": [1, 8], "canvas": 8}))
    assert done.returncode != 0 and "the canvas of mdm has 8; set sampling.canvas" in done.stderr
    assert "Traceback" not in done.stderr and "rule finetune" not in done.stderr + done.stdout


def test_a_base_is_pretrained_after_the_preflight(checkout, tmp_path):
    """The preflight measures rows with the tokenizer, which is made before the base."""
    (tmp_path / "own.yaml").write_text(json.dumps({"study": "own", "models": {"mdm": {"base": "pretrain"}}}))
    jobs = count_planned_jobs(checkout, "results/own/models/mdm/base", study=str(tmp_path / "own.yaml"))
    assert {"tokenizer", "preflight", "prepare", "base_pretrain"} == jobs.keys()


def test_a_gpu_profile_without_a_gpu_is_rejected_before_the_first_job(checkout):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = snakemake(checkout, "--profile", "profiles/gpu", study="studies/smoke.yaml")
    assert done.returncode != 0 and "PyTorch finds none here" in done.stderr
    assert not (checkout / "results/smoke").exists()


def test_jobs_that_can_find_errors_run_before_anything_is_trained(root):
    """Of two jobs that are ready, the one that can find an error has priority."""
    for name in ("data", "models"):
        for rule in re.split(r"^(?=rule )", (root / f"workflow/rules/{name}.smk").read_text(), flags=re.M)[1:]:
            trained = ("base_pretrain", "finetune", "untrained", "train_store", "split_store")
            trains = rule.startswith(tuple(f"rule {name}:" for name in trained))
            assert trains or "script:" not in rule or "priority: FIRST_OF_ALL" in rule, rule.splitlines()[0]


def test_rules_that_use_a_gpu_request_it_and_memory_on_a_cluster(root):
    """Otherwise several jobs would share one GPU, or run on a node without one."""
    cluster = yaml.safe_load((root / "profiles/slurm/config.yaml").read_text())["set-resources"]
    rules = {}
    for file in (root / "workflow/rules").glob("*.smk"):
        rules |= {rule.split(":")[0][5:]: rule for rule in re.split(r"^(?=rule )", file.read_text(), flags=re.M)[1:]}
    many = yaml.safe_load((root / "profiles/slurm-many/config.yaml").read_text())
    grouped = {entry.split("=")[0] for entry in many["groups"]}
    for name in network_rules(root):
        assert "gpu=" in rules[name], name
        assert "attempt" in cluster[name]["mem_mb"], name
        assert name == "base_pretrain" or name in grouped and many["set-resources"][name]["turn"] == 1, name


def test_the_workflow_is_lint_free(checkout):
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--lint"], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "stages, jobs",
    [
        (["finetuned_edits"], {"finetuned_edits"}),
        (["rank_one_edits", "keyvalue", "tracing"], {"rank_one_edits", "keyvalue", "symmetry", "trace", "peaks"}),
    ],
)
def test_a_study_without_a_stage_plans_none_of_its_jobs_and_writes_a_report(checkout, tmp_path, stages, jobs):
    settings = {stage: {resolve.STAGES[stage]: 0} for stage in stages}
    (tmp_path / "without.yaml").write_text(yaml.safe_dump({"study": "without", **settings}))
    planned = count_planned_jobs(checkout, study=str(tmp_path / "without.yaml"))
    assert not jobs & planned.keys() and {"finetune", "post", "page"} <= planned.keys()
    assert "figure_step_scaling" in planned and (("figure_trace_average" in planned) == ("tracing" not in stages))
