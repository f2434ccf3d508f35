"""Jobs: which GPUs they reserve, and the peak of memory that they log."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from reversal.common import files, jobs


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine on which no job has reserved a GPU."""
    monkeypatch.setattr(jobs.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    before = list(files._locks)
    yield
    for file in files._locks[len(before) :]:
        file.close()
    files._locks[:] = before


def start_job(monkeypatch, count, available, visible=None):
    """CUDA_VISIBLE_DEVICES of a job that starts now."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    jobs._reserve_gpus(count, available)
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def test_jobs_reserve_free_gpus_and_share_if_none_is_free(monkeypatch):
    assert [start_job(monkeypatch, 1, 3) for _ in range(3)] == ["0", "1", "2"]
    assert start_job(monkeypatch, 1, 3) in {"0", "1", "2"}


def test_a_job_on_several_gpus_takes_as_many(monkeypatch):
    assert start_job(monkeypatch, 2, 4) == "0,1"
    assert start_job(monkeypatch, 1, 4) == "2"
    assert start_job(monkeypatch, 2, 4).startswith("3,")


def test_a_gpu_is_free_again_when_its_job_has_ended(monkeypatch):
    start_job(monkeypatch, 1, 2)
    files._locks.pop().close()
    assert start_job(monkeypatch, 1, 2) == "0"


@pytest.mark.parametrize(("count", "available", "visible"), [(1, 0, None), (1, 1, None), (0, 2, None), (2, 2, "4,5")])
def test_no_gpu_is_chosen_if_there_is_no_choice(monkeypatch, count, available, visible):
    assert start_job(monkeypatch, count, available, visible) == visible


def test_only_gpus_that_the_user_or_slurm_allows_are_reserved(monkeypatch):
    assert start_job(monkeypatch, 1, 2, "6,7") == "6"
    assert start_job(monkeypatch, 1, 2, "6,7") == "7"


def test_a_short_job_logs_its_peak_of_memory(root, tmp_path):
    script = (
        "from types import SimpleNamespace\n"
        "from reversal.common import jobs\n"
        f"snakemake = SimpleNamespace(log=[{str(tmp_path / 'job.log')!r}], threads=1, input=[], output=[])\n"
        "with jobs.job(snakemake):\n"
        "    bytearray(b'1') * (600 * 2**20)\n"
    )
    # Through a shell, as Snakemake starts jobs: the peak of a process includes that of the one that started it.
    shell = f"{shlex.quote(sys.executable)} -c {shlex.quote(script)}; true"
    subprocess.run(["sh", "-c", shell], cwd=root, check=True)
    (peak,) = re.findall(r" memory: at most ([\d.]+) GiB$", (tmp_path / "job.log").read_text(), re.MULTILINE)
    assert 0.6 <= float(peak) < 0.9
