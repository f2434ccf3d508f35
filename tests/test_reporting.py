"""Jobs: which GPUs they see, and what they tell of their memory."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from reversal.common import files, jobs


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine of its own, on which no job holds a GPU."""
    monkeypatch.setattr(jobs.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    held = list(files._held)
    yield
    for file in files._held[len(held) :]:
        file.close()
    files._held[:] = held


def job(monkeypatch, wanted, there, visible=None):
    """What a job that starts now is shown."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    jobs._choose_gpus(wanted, there)
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def test_jobs_take_gpus_that_are_free_and_share_when_none_is(monkeypatch):
    assert [job(monkeypatch, 1, 3) for _ in range(3)] == ["0", "1", "2"]
    assert job(monkeypatch, 1, 3) in {"0", "1", "2"}


def test_a_job_on_several_gpus_takes_as_many(monkeypatch):
    assert job(monkeypatch, 2, 4) == "0,1"
    assert job(monkeypatch, 1, 4) == "2"
    assert job(monkeypatch, 2, 4).startswith("3,")


def test_a_gpu_is_free_again_when_its_job_has_ended(monkeypatch):
    job(monkeypatch, 1, 2)
    files._held.pop().close()
    assert job(monkeypatch, 1, 2) == "0"


@pytest.mark.parametrize(("wanted", "there", "visible"), [(1, 0, None), (1, 1, None), (0, 2, None), (2, 2, "4,5")])
def test_where_there_is_no_choice_nothing_is_chosen(monkeypatch, wanted, there, visible):
    assert job(monkeypatch, wanted, there, visible) == visible


def test_only_gpus_that_the_user_or_slurm_shows_are_taken(monkeypatch):
    assert job(monkeypatch, 1, 2, "6,7") == "6"
    assert job(monkeypatch, 1, 2, "6,7") == "7"


def test_a_job_tells_its_peak_of_memory_however_short(root, tmp_path):
    script = (
        "from types import SimpleNamespace\n"
        "from reversal.common import jobs\n"
        f"snakemake = SimpleNamespace(log=[{str(tmp_path / 'job.log')!r}], threads=1, input=[], output=[])\n"
        "with jobs.job(snakemake):\n"
        "    bytearray(b'1') * (600 * 2**20)\n"
    )
    # Through a shell, as Snakemake starts jobs: a process counts what the one that started it had.
    shell = f"{shlex.quote(sys.executable)} -c {shlex.quote(script)}; true"
    subprocess.run(["sh", "-c", shell], cwd=root, check=True)
    (told,) = re.findall(r" memory: at most ([\d.]+) GiB$", (tmp_path / "job.log").read_text(), re.MULTILINE)
    assert 0.6 <= float(told) < 0.9
