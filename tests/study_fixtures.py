"""Run studies in copies of the project, as a user would."""

import contextlib
import fcntl
import functools
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fork_server

# Snakemake starts as a fork of a process that has imported it and its plugins: imports are more than half of the time
# of a dry run.
FORK_SERVER = multiprocessing.get_context("forkserver")
PLUGINS = ["snakemake_executor_plugin_slurm", "snakemake_storage_plugin_fs", "snakemake.report.html_reporter"]
FORK_SERVER.set_forkserver_preload(["snakemake.cli", "snakemake.profiles", "smart_open", "jsonschema", *PLUGINS])


def copy_project(root, folder):
    """Copy the files that git tracks or would add, so that a study can run without touching the results here."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=root, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name)
    return folder


def command(*arguments, study="studies/smoke.yaml", cores=2):
    """The command line that runs a study with Snakemake; without `cores`, a profile sets where jobs run.

    Each job has one thread, since tests run in parallel: more threads would only wait for each other.
    """
    limit = ["--cores", str(cores), "--max-threads", "1"] if cores else []
    return [sys.executable, "-m", "snakemake", *limit, *arguments, "--configfile", study]


def snakemake(folder, *arguments, without=(), **options):
    """Run Snakemake with the modules `without` unimportable; returns a `CompletedProcess` like `subprocess.run`."""
    words = command(*arguments, **options)
    jobs = None if "-n" in arguments else _job_server()
    with tempfile.TemporaryDirectory() as logs:
        outputs = [Path(logs) / name for name in ("stdout", "stderr")]
        running = start_snakemake(folder, words, outputs, jobs, without)
        running.join()
        return subprocess.CompletedProcess(words, running.exitcode, *(file.read_text() for file in outputs))


def start_snakemake(folder, words, outputs, jobs, without=()):
    """Start the command line `words` in a process of its own; `outputs` are the files of its stdout and stderr.

    Jobs start as forks of the process `jobs`, a server of `fork_server`.
    """
    running = FORK_SERVER.Process(target=_run, args=(folder, words, outputs, jobs and jobs.pid, without))
    running.start()
    return running


@functools.cache
def _job_server():
    return fork_server.start()


def _run(folder, words, outputs, jobs, without):
    os.chdir(folder)
    for descriptor, file in enumerate(outputs, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    assert sys.modules.keys().isdisjoint(without)
    sys.modules.update(dict.fromkeys(without))
    sys.argv = words[words.index("snakemake") :]
    # Imported here, where it is preloaded: the test processes do not need it.
    from snakemake import script
    from snakemake.benchmark import benchmarked
    from snakemake.cli import main

    def execute(self, name, edit=False):
        record = self.bench_record
        fork_server.run(name, jobs, lambda job: benchmarked(job, record) if record else contextlib.nullcontext())

    script.PythonScript.execute_script = execute
    main()


def run_smoke_study(root, factory):
    """Run the smoke study, once for all test processes; a test that changes anything copies it with `copy_study`."""
    temporary = factory.getbasetemp()
    temporary = temporary.parent if temporary.name.startswith("popen-") else temporary
    folder = temporary / "smoke/project"
    with (temporary / "smoke.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            done = snakemake(copy_project(root, folder))
            assert done.returncode == 0, (done.stderr + done.stdout)[-6000:]
    return folder


def copy_study(folder, target):
    """Copy a study's folder with all times of its files, as `cp -a` does."""
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", str(folder), str(target)], check=True)
    return target


def remove_model(folder, model):
    """Remove all results of a fine-tuned model from a finished smoke study, so that they are made again."""
    for result in (folder / "results/smoke").glob(f"*/{model}*"):
        for path in result.glob("seed_*") if result.parent.name == "models" else [result]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def count_planned_jobs(folder, *arguments, **options):
    """The number of jobs of each rule that a dry run plans."""
    return {rule: len(jobs) for rule, jobs in list_planned_jobs(folder, *arguments, **options).items()}


def list_planned_jobs(folder, *arguments, **options):
    """The jobs that a dry run plans: {rule: [wildcards of a job]}."""
    done = snakemake(folder, "-n", *arguments, **options)
    assert done.returncode == 0, done.stderr + done.stdout
    planned = {}
    for rule, lines in re.findall(r"^(?:local)?rule (\w+):\n((?:    .*\n)*)", done.stdout + done.stderr, re.M):
        wildcards = re.search(r"^    wildcards: (.*)$", lines, re.M)
        planned.setdefault(rule, []).append(dict(re.findall(r"(\w+)=([^,]*)", wildcards[1])) if wildcards else {})
    return planned


def wait_for_job(exit_code, script, folder, timeout=600):
    """Wait until a Snakemake in `folder` runs `script`; returns the process id of that job.

    `exit_code()` is None while that Snakemake runs.
    """
    deadline = time.monotonic() + timeout
    while (process := _find_process(script, folder)) is None:
        assert exit_code() is None, f"Snakemake ended with {exit_code()} before {script} started"
        assert time.monotonic() < deadline, f"{script} did not start within {timeout} s"
        time.sleep(0.2)
    return process


def _find_process(script, folder):
    """The id of the process that runs `script` in `folder`, or None."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name, words = (process / "comm").read_text().strip(), (process / "cmdline").read_bytes().split(b"\0")
            in_folder = (process / "cwd").readlink() == folder
        except OSError:
            continue
        is_script = b"python" in words[0] and any(word.endswith(f".{script}".encode()) for word in words[1:3])
        if in_folder and (is_script or name == script):
            return int(process.name)
    return None
