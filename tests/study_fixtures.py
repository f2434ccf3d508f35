"""Running studies in copies of the checkout, as a user would."""

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

# A Snakemake that tests wait for begins as a copy of a process that has imported it and what it imports later: that is
# more than half of a dry run's time.
READY = multiprocessing.get_context("forkserver")
PLUGINS = ["snakemake_executor_plugin_slurm", "snakemake_storage_plugin_fs", "snakemake.report.html_reporter"]
READY.set_forkserver_preload(["snakemake.cli", "snakemake.profiles", "smart_open", "jsonschema", *PLUGINS])


def copy(root, folder):
    """A copy of what git has or would take, where a study can run without touching the results here."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=root, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name)
    return folder


def command(*arguments, study="studies/smoke.yaml", cores=2):
    """The command line of a Snakemake that runs a study; without `cores`, a profile says where.

    Jobs have one thread each, since others run beside them: threads that wait for each other use up the processors.
    """
    limit = ["--cores", str(cores), "--max-threads", "1"] if cores else []
    return [sys.executable, "-m", "snakemake", *limit, *arguments, "--configfile", study]


def snakemake(folder, *arguments, without=(), **options):
    """Run it to its end, some modules being unimportable: a `CompletedProcess`, as `subprocess.run` would give."""
    words = command(*arguments, **options)
    jobs = None if "-n" in arguments else _ready_for_jobs()
    with tempfile.TemporaryDirectory() as told:
        outputs = [Path(told) / name for name in ("stdout", "stderr")]
        running = start(folder, words, outputs, jobs, without)
        running.join()
        return subprocess.CompletedProcess(words, running.exitcode, *(file.read_text() for file in outputs))


def start(folder, words, outputs, jobs, without=()):
    """A process that does what the command line `words` says, its outputs going to two files.

    Jobs begin as copies of the process `jobs`, which is one of `ready`.
    """
    running = READY.Process(target=_run, args=(folder, words, outputs, jobs and jobs.pid, without))
    running.start()
    return running


@functools.cache
def _ready_for_jobs():
    return fork_server.start()


def _run(folder, words, outputs, jobs, without):
    os.chdir(folder)
    for descriptor, file in enumerate(outputs, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    assert sys.modules.keys().isdisjoint(without)
    sys.modules.update(dict.fromkeys(without))
    sys.argv = words[words.index("snakemake") :]
    # Here, where it is imported already: the tests' own processes have no need of it.
    from snakemake import script
    from snakemake.benchmark import benchmarked
    from snakemake.cli import main

    def execute(self, name, edit=False):
        record = self.bench_record
        fork_server.run(name, jobs, lambda job: benchmarked(job, record) if record else contextlib.nullcontext())

    script.PythonScript.execute_script = execute
    main()


def finished(root, factory):
    """The smoke study, run once for all test processes; who changes anything takes a copy with `duplicate`."""
    place = factory.getbasetemp()
    place = place.parent if place.name.startswith("popen-") else place
    folder = place / "smoke/project"
    with (place / "smoke.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            done = snakemake(copy(root, folder))
            assert done.returncode == 0, (done.stderr + done.stdout)[-6000:]
    return folder


def duplicate(folder, to):
    """A copy of a study's folder with all its times, as `cp -a` makes it."""
    to.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", str(folder), str(to)], check=True)
    return to


def forget(folder, model):
    """Remove what a finished smoke study has of a fine-tuned model, so that it is made again."""
    for made in (folder / "results/smoke").glob(f"*/{model}*"):
        for path in made.glob("seed_*") if made.parent.name == "models" else [made]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def planned(folder, *arguments, **options):
    """Which jobs a dry run would do: {rule: how often}."""
    return {rule: len(jobs) for rule, jobs in planned_jobs(folder, *arguments, **options).items()}


def planned_jobs(folder, *arguments, **options):
    """Which jobs a dry run would do: {rule: [its wildcards]}."""
    done = snakemake(folder, "-n", *arguments, **options)
    assert done.returncode == 0, done.stderr + done.stdout
    found = {}
    for rule, told in re.findall(r"^(?:local)?rule (\w+):\n((?:    .*\n)*)", done.stdout + done.stderr, re.M):
        wildcards = re.search(r"^    wildcards: (.*)$", told, re.M)
        found.setdefault(rule, []).append(dict(re.findall(r"(\w+)=([^,]*)", wildcards[1])) if wildcards else {})
    return found


def wait_for_job(ended, script, folder, patience=600):
    """The process id of a job that a Snakemake has begun in `folder`: that of its `script`.

    `ended()` is None while that Snakemake runs.
    """
    deadline = time.monotonic() + patience
    while (found := _process_of(script, folder)) is None:
        assert ended() is None, f"Snakemake ended with {ended()} before {script} began"
        assert time.monotonic() < deadline, f"{script} did not begin in {patience} s"
        time.sleep(0.2)
    return found


def _process_of(script, folder):
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name, words = (process / "comm").read_text().strip(), (process / "cmdline").read_bytes().split(b"\0")
            here = (process / "cwd").readlink() == folder
        except OSError:
            continue
        run = b"python" in words[0] and any(word.endswith(f".{script}".encode()) for word in words[1:3])
        if here and (run or name == script):
            return int(process.name)
    return None
