"""Memory over a large vocabulary, counted on the CPU: it stays near the budget."""

import functools
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from reversal.models.network import mask_id, new
from reversal.recall import autoregressive, logits, masked
from reversal.recall.sampling import Sampling
from reversal.tracing import engine, time

BUDGET = 2**20
VOCAB = 4000


class MemoryCounter(TorchDispatchMode):
    """Counts the bytes of the tensors made within it, and their peak."""

    def __init__(self):
        super().__init__()
        self.now, self.peak, self.known = 0, 0, set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        given = {part.untyped_storage()._cdata for part in tree_iter((args, kwargs)) if isinstance(part, torch.Tensor)}
        made = operation(*args, **(kwargs or {}))
        for part in tree_iter(made):
            storage = part.untyped_storage() if isinstance(part, torch.Tensor) else None
            if storage is not None and storage._cdata not in self.known | given:
                self.known.add(storage._cdata)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._freed, storage._cdata, storage.nbytes())
        return made

    def _freed(self, which, size):
        self.known.discard(which)
        self.now -= size


@functools.cache
def network(*, causal=False):
    return new(causal=causal, eos=0, seed=0, vocab=VOCAB, width=16, layers=2, heads=2, mlp=32)


def prompts():
    return [[3 + i, 7, 5 + i % 11] for i in range(24)]


def sample(**changes):
    """Work that fills 24 canvases with ten masks each, whose logits take almost four times the budget."""
    sampling = Sampling(canvas=13, **changes)

    def work():
        generator = torch.Generator().manual_seed(0)
        return masked.denoise_each(network(), prompts(), sampling, [2], generator=generator)[2].canvas

    return work


def score_masks():
    net = network()
    questions = [([*prompt, *[mask_id(net)] * 10], [(3 + i, 9) for i in range(10)]) for prompt in prompts()]
    return torch.tensor(time.score_answers(net, questions))


def score_answers(*, causal):
    answers = [[9, 8, 7, 6, 5, 4, 3, 9, 8, 7]] * 24
    if causal:
        return autoregressive.log_likelihood(network(causal=True), prompts(), answers)
    return masked.log_likelihood(network(), prompts(), answers, samples=2, generator=torch.Generator().manual_seed(0))


def trace():
    net = network()
    ids = [3, 7, 5, 11, *[mask_id(net)] * 10]
    answer = {4 + i: 9 for i in range(10)}
    return engine.trace(net, ids, subject=(1, 3), answer=answer, kind="mlp").log_restored


WORK = {
    "sampling": sample(),
    "guided sampling": sample(guidance=0.8),
    "random sampling": sample(temperature=0.7),
    "log-probabilities": score_masks,
    "a diffusion network's likelihood": lambda: score_answers(causal=False),
    "an autoregressive network's likelihood": lambda: score_answers(causal=True),
    "tracing": trace,
}


@pytest.mark.parametrize("name", WORK)
def test_logits_over_a_large_vocabulary_stay_near_the_budget_and_results_are_the_same(name, monkeypatch):
    work = WORK[name]
    expected = work()
    monkeypatch.setitem(logits.BYTES, "cpu", BUDGET)
    monkeypatch.setitem(engine.BYTES, "cpu", BUDGET)
    with MemoryCounter() as memory:
        found = work()
    assert memory.peak < 3 * BUDGET
    torch.testing.assert_close(found, expected)
