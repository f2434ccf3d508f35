"""A real GPU that runs out of memory: smaller batches, the same numbers. Other tests simulate running out."""

import pytest
import torch

from reversal.common import batches
from reversal.models.network import default_device, mask_id, new
from reversal.recall import masked
from reversal.tracing import engine
from reversal.training import loop

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
MIB = 2**20


@pytest.fixture
def limit_memory():
    """A function that limits the process to so many MiB more of the GPU and returns a counter of failed allocations."""

    def limit(mib):
        torch.cuda.empty_cache()
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + mib * MIB) / whole)
        before = torch.cuda.memory_stats()["num_ooms"]
        return lambda: torch.cuda.memory_stats()["num_ooms"] - before

    yield limit
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def make_network(*, causal=False, **changes):
    """A random network on the GPU with weights so large that rounding changes no chosen token."""
    shape = {"vocab": 2000, "width": 64, "layers": 2, "heads": 2, "mlp": 128, **changes}
    net = new(causal=causal, eos=0, seed=0, **shape)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(4)
    return net.to(default_device())


def test_sampling_continues_in_smaller_batches_with_the_same_tokens(limit_memory, monkeypatch):
    net = make_network()
    prompts = [[3 + i % 1500, 7, 5 + i % 11] for i in range(2048)]
    options = {"canvas": 64, "steps": 4}
    monkeypatch.setitem(batches.SIZES, "cuda", 64)
    expected = masked.denoise(net, prompts, **options)
    count_failures = limit_memory(400)  # the logits of all rows take a gigabyte
    monkeypatch.setitem(batches.SIZES, "cuda", 2048)
    result = masked.denoise(net, prompts, **options)
    assert count_failures()
    assert (result.canvas == expected.canvas).float().mean() > 0.999


@pytest.mark.parametrize("causal", [True, False])
def test_training_continues_in_parts_with_the_same_losses(causal, limit_memory):
    rows = [[3 + (i * j) % 1900 for j in range(1, 65)] for i in range(1024)]
    recipe = loop.Recipe(epochs=2, batch=512, learning_rate=1e-3, warmup_steps=1)
    expected = loop.fit(make_network(causal=causal), rows, recipe)
    net = make_network(causal=causal)
    count_failures = limit_memory(300)  # the logits of a batch and their gradients take more
    result = loop.fit(net, rows, recipe)
    assert count_failures()
    assert result.loss.tolist() == pytest.approx(expected.loss.tolist(), rel=5e-3)


@pytest.mark.parametrize("causal", [True, False])
def test_tracing_continues_in_smaller_batches_with_the_same_effects(causal, limit_memory, monkeypatch):
    net = make_network(causal=causal, vocab=50, width=256, layers=6, heads=4, mlp=1024)
    ids = torch.randint(3, 50, (64,), generator=torch.Generator().manual_seed(1))
    if not causal:
        ids[60:] = mask_id(net)
    noise = engine.draw_noise(net, (2, 5), 8, generator=torch.Generator().manual_seed(2))
    query = {"subject": (2, 5), "answer": {61: 7, 62: 9}, "noise": noise}
    monkeypatch.setitem(engine.BYTES, "cuda", 64 * MIB)
    expected = engine.trace(net, ids, **query)
    count_failures = limit_memory(200)
    monkeypatch.setitem(engine.BYTES, "cuda", 2**40)
    result = engine.trace(net, ids, **query)
    assert count_failures()
    torch.testing.assert_close(result.log_restored, expected.log_restored, atol=1e-2, rtol=1e-3)
