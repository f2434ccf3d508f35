"""Running studies in copies of the checkout, as a user would."""

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path


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
    """The command line of a Snakemake that runs a study; without `cores`, a profile says where."""
    limit = ["--cores", str(cores)] if cores else []
    return [sys.executable, "-m", "snakemake", *limit, *arguments, "--configfile", study]


def snakemake(folder, *arguments, **options):
    """Run it to its end."""
    return subprocess.run(command(*arguments, **options), cwd=folder, capture_output=True, text=True, check=False)


def planned(folder, *arguments, **options):
    """Which jobs a dry run would do: {rule: how often}."""
    done = snakemake(folder, "-n", *arguments, **options)
    assert done.returncode == 0, done.stderr + done.stdout
    found = re.findall(r"^(\w+) +(\d+)$", done.stdout + done.stderr, re.M)
    return {rule: int(count) for rule, count in found if rule != "total"}


def wait_for_job(running, script, folder, patience=600):
    """The process id of a job that a Snakemake, the process `running`, has begun in `folder`: that of its `script`."""
    deadline = time.monotonic() + patience
    while (found := _process_of(script, folder)) is None:
        assert running.poll() is None, f"Snakemake ended with {running.returncode} before {script} began"
        assert time.monotonic() < deadline, f"{script} did not begin in {patience} s"
        time.sleep(0.2)
    return found


def _process_of(script, folder):
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            here = (process / "cwd").readlink() == folder
        except OSError:
            continue
        if here and b"python" in words[0] and any(word.endswith(f".{script}".encode()) for word in words[1:3]):
            return int(process.name)
    return None
