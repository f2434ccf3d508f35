"""Work in batches, and the one way to go on where GPU memory runs out."""

import sys
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reversal.common import batches


def within(limit, tried=None):
    """Work on a list that gives its items back, and runs out of memory with more than `limit` of them."""

    def work(some):
        if tried is not None:
            tried.append(len(some))
        if len(some) > limit:
            raise torch.OutOfMemoryError("simulated")
        return list(some)

    return work


def test_work_that_fits_gives_its_result():
    assert batches.attempt(lambda: "done") == ("done", True)


def test_what_failed_work_held_is_free_before_memory_is_given_back(monkeypatch):
    held, order = [], []

    def work():
        large = torch.zeros(10)
        held.append(weakref.ref(large))
        raise torch.OutOfMemoryError("simulated")

    def note(what):
        order.append((what, held[0]() is None, sys.exc_info()[1]))

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: note("empty"))
    assert batches.attempt(work, undo=lambda: note("undo")) == (None, False)
    assert order == [("undo", True, None), ("empty", True, None)]


def test_the_last_resort_raises_its_error():
    with pytest.raises(torch.OutOfMemoryError, match="simulated"):
        batches.attempt(lambda: within(0)([1]), last=True)


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    with pytest.raises(RuntimeError, match="shapes"):
        batches.attempt(lambda: (_ for _ in ()).throw(RuntimeError("shapes")))


@given(st.lists(st.lists(st.integers(), min_size=1, max_size=9), max_size=4), st.integers(1, 9))
def test_pieces_too_large_are_halved_for_good_and_nothing_is_lost(pieces, limit):
    expected, tried = sum(pieces, []), []
    assert sum(batches.each(within(limit, tried), pieces), []) == expected
    assert all(len(piece) <= limit for piece in pieces)
    tried.clear()
    assert sum(batches.each(within(limit, tried), pieces), []) == expected
    assert len(tried) == len(pieces), "what was halved once is not tried whole again"


def test_a_piece_that_cannot_be_halved_raises():
    with pytest.raises(torch.OutOfMemoryError):
        list(batches.each(within(0), [[1, 2]]))


@given(
    st.lists(st.integers(1, 20), max_size=12).map(lambda costs: sorted(costs, reverse=True)),
    st.integers(1, 100),
    st.integers(1, 5),
)
def test_a_budget_is_spent_on_every_item_once_and_in_order(costs, size, limit):
    budget, done = batches.Budget(size), []
    budget.spend(costs, lambda some: done.extend(within(limit)(range(*some.indices(len(costs))))))
    assert done == list(range(len(costs)))
    assert budget.size <= size


def test_a_budget_stays_as_small_as_it_had_to_become():
    budget, tried = batches.Budget(64), []
    for _ in range(2):
        budget.spend([8] * 8, lambda some: within(3, tried)(range(*some.indices(8))))
    assert tried == [8, 4, *[2] * 8]


@given(st.lists(st.integers(1, 5), max_size=12), st.integers(1, 13), st.integers(1, 13))
def test_rows_come_back_in_their_order_whatever_the_batches(lengths, size, limit):
    rows = within(limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(batches.SIZES, "cpu", size)
        assert batches.run(rows, lengths, torch.device("cpu")) == list(range(len(lengths)))


def test_no_other_module_has_a_way_of_its_own(root):
    library = root / "workflow/reversal"
    named = [file for file in library.rglob("*.py") if "OutOfMemoryError" in file.read_text()]
    assert named == [library / "common/batches.py"]
