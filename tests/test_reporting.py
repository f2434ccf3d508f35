"""Jobs: which GPUs they see."""

import os

import pytest

from workflow.reversal import files, reporting


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine of its own, on which no job holds a GPU."""
    monkeypatch.setattr(reporting.tempfile, "gettempdir", lambda: str(tmp_path))
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
    reporting._choose_gpus(wanted, there)
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
