"""Batches are halved when GPU memory runs out, and only `common/batches.py` handles that."""

import sys
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reversal.common import batches


def limited_work(limit, tried=None):
    """A function that returns the items of a batch, and runs out of memory with more than `limit` of them."""

    def work(batch):
        if tried is not None:
            tried.append(len(batch))
        if len(batch) > limit:
            raise torch.OutOfMemoryError("simulated")
        return list(batch)

    return work


def test_work_that_fits_returns_its_result():
    assert batches.attempt(lambda: "done") == ("done", True)


def test_tensors_of_failed_work_are_dropped_before_the_cache_is_emptied(monkeypatch):
    references, order = [], []

    def work():
        large = torch.zeros(10)
        references.append(weakref.ref(large))
        raise torch.OutOfMemoryError("simulated")

    def record(name):
        order.append((name, references[0]() is None, sys.exc_info()[1]))

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: record("empty"))
    assert batches.attempt(work, undo=lambda: record("undo")) == (None, False)
    assert order == [("undo", True, None), ("empty", True, None)]


def test_the_last_resort_raises_its_error():
    with pytest.raises(torch.OutOfMemoryError, match="simulated"):
        batches.attempt(lambda: limited_work(0)([1]), last=True)


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    with pytest.raises(RuntimeError, match="shapes"):
        batches.attempt(lambda: (_ for _ in ()).throw(RuntimeError("shapes")))


@given(st.lists(st.lists(st.integers(), min_size=1, max_size=9), max_size=4), st.integers(1, 9))
def test_pieces_that_are_too_large_stay_halved_and_no_item_is_lost(pieces, limit):
    expected, tried = sum(pieces, []), []
    assert sum(batches.run_pieces(limited_work(limit, tried), pieces), []) == expected
    assert all(len(piece) <= limit for piece in pieces)
    tried.clear()
    assert sum(batches.run_pieces(limited_work(limit, tried), pieces), []) == expected
    assert len(tried) == len(pieces), "a piece that was halved is not tried whole again"


def test_a_piece_that_cannot_be_halved_raises():
    with pytest.raises(torch.OutOfMemoryError):
        list(batches.run_pieces(limited_work(0), [[1, 2]]))


@given(
    st.lists(st.integers(1, 20), max_size=12).map(lambda costs: sorted(costs, reverse=True)),
    st.integers(1, 100),
    st.integers(1, 5),
)
def test_a_budget_runs_every_item_once_and_in_order(costs, size, limit):
    budget, done = batches.Budget(size), []
    budget.run_batches(costs, lambda batch: done.extend(limited_work(limit)(range(*batch.indices(len(costs))))))
    assert done == list(range(len(costs)))
    assert budget.size <= size


def test_a_budget_that_was_halved_stays_halved():
    budget, tried = batches.Budget(64), []
    for _ in range(2):
        budget.run_batches([8] * 8, lambda batch: limited_work(3, tried)(range(*batch.indices(8))))
    assert tried == [8, 4, *[2] * 8]


@given(st.lists(st.integers(1, 5), max_size=12), st.integers(1, 13), st.integers(1, 13))
def test_results_keep_the_order_of_the_rows_whatever_the_batches(lengths, size, limit):
    rows = limited_work(limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(batches.SIZES, "cpu", size)
        assert batches.run_by_length(rows, lengths, torch.device("cpu")) == list(range(len(lengths)))


def test_no_other_module_handles_out_of_memory_errors(root):
    library = root / "workflow/reversal"
    modules = [file for file in library.rglob("*.py") if "OutOfMemoryError" in file.read_text()]
    assert modules == [library / "common/batches.py"]
