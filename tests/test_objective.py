import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reversal.models import network
from reversal.training import objective


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def fresh(**kind):
    """A tiny random diffusion network over 50 tokens."""
    return network.new(causal=False, vocab=50, width=32, layers=2, heads=2, mlp=64, eos=0, seed=0, **kind)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 70), seed=st.integers(0, 1000))
def test_times_lie_one_in_each_stratum(rows, seed):
    t = objective.stratified_times(rows, generator=generator(seed))
    assert t.min() >= objective.EPSILON and t.max() <= 1
    strata = ((t - objective.EPSILON) / (1 - objective.EPSILON) * rows).add(1e-4 * rows / 100)
    spread = (strata.sort().values - strata.sort().values[0]).round()
    assert torch.equal(spread, torch.arange(rows, dtype=t.dtype))


def test_tokens_are_masked_with_probability_t():
    ids = torch.arange(20000).view(2, -1)
    noisy, hit = objective.corrupt(ids, torch.tensor([0.2, 0.7]), 99999, generator=generator())
    torch.testing.assert_close(hit.float().mean(1), torch.tensor([0.2, 0.7]), atol=0.02, rtol=0)
    assert torch.equal(noisy == 99999, hit)


def test_the_diffusion_loss_is_the_masked_cross_entropy_over_t(tiny):
    if not network.is_diffusion(tiny):
        return
    ids = torch.randint(0, network.vocab(tiny), (5, 7), generator=generator())
    batch = objective.diffusion_targets(ids, tiny, generator=generator(3))
    t = objective.stratified_times(5, generator=generator(3))
    expected = 0.0
    logits = tiny(input_ids=batch.inputs).logits[..., : network.vocab(tiny)]
    for row in range(5):
        for column in range(7):
            if batch.inputs[row, column] == network.mask_id(tiny):
                expected -= logits[row, column].log_softmax(-1)[ids[row, column]] / t[row] / ids.numel()
    torch.testing.assert_close(objective.compute_loss(tiny, batch), expected)


def test_the_autoregressive_loss_is_that_of_transformers(tiny):
    if network.is_diffusion(tiny):
        return
    ids = torch.randint(1, network.vocab(tiny), (4, 9), generator=generator())
    ids[1, 6:] = 0
    real = torch.ones_like(ids, dtype=torch.bool)
    real[1, 7:] = False  # one end token counts, the padding after it does not
    loss = objective.compute_loss(tiny, objective.autoregressive_targets(ids, real))
    theirs = tiny(input_ids=ids, labels=ids.masked_fill(~real, -100)).loss
    torch.testing.assert_close(loss, theirs)


def test_the_mean_diffusion_loss_of_a_uniform_network_is_log_vocabulary():
    """Σ CE / t over the tokens has the mean log V when every token costs log V, whatever t."""
    ids, net = torch.zeros(64, 16, dtype=torch.long), fresh()
    weights = [objective.diffusion_targets(ids, net, generator=generator(i)).weights.sum() for i in range(400)]
    torch.testing.assert_close(torch.stack(weights).mean(), torch.tensor(1.0), atol=0.03, rtol=0)
