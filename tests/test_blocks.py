"""Block diffusion: a token never sees a later block; one block at a time is noised, and one at a time is filled."""

import itertools

import pytest
import torch

from reversal.common.errors import UserError
from reversal.models import network
from reversal.recall import masked
from reversal.recall.sampling import Sampling
from reversal.study.resolve import Objective
from reversal.training import loop, objective

SHAPE = {"causal": False, "vocab": 40, "width": 32, "layers": 2, "heads": 2, "mlp": 64, "eos": 0}
IDS = torch.randint(1, 40, (16, 10), generator=torch.Generator().manual_seed(0))


def block_network(size, seed=0):
    return network.new(**SHAPE, seed=seed, block_size=size)


@pytest.mark.parametrize("size", [1, 3, 4, 10])
def test_a_token_attends_to_its_own_block_and_earlier_ones(size):
    allowed = network.block_attention_mask(size, 10)
    for query, key in itertools.product(range(10), repeat=2):
        assert allowed[query, key] == (key // size <= query // size)


def test_a_change_in_a_later_block_moves_no_earlier_state():
    net = block_network(4)
    changed = IDS.clone()
    changed[:, 5] = (IDS[:, 5] + 1) % 40
    with torch.no_grad():
        before, after = network.hidden(net, IDS), network.hidden(net, changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.isclose(before[:, 4:8], after[:, 4:8]).all(-1).any()  # the block sees it whole


@pytest.mark.parametrize("size", [10, 64])
def test_a_block_as_long_as_the_row_is_the_ordinary_network_bit_for_bit(size):
    plain, blocks = network.new(**SHAPE, seed=0), block_network(size)
    with torch.no_grad():
        assert torch.equal(network.hidden(plain, IDS), network.hidden(blocks, IDS))
    draws = [
        objective.diffusion_targets(IDS, net, generator=torch.Generator().manual_seed(1)) for net in (plain, blocks)
    ]
    assert all(torch.equal(*fields) for fields in zip(*(draw[:3] for draw in draws), strict=True))


def test_one_block_of_a_row_is_noised_and_the_others_are_clean():
    targets = objective.diffusion_targets(IDS, block_network(4), generator=torch.Generator().manual_seed(0))
    noised = targets.inputs != IDS
    blocks = [{position // 4 for position in row.nonzero()[:, 0].tolist()} for row in noised]
    assert max(map(len, blocks)) == 1 and len(set.union(*blocks)) == 3
    assert torch.equal(targets.weights > 0, noised)


def test_the_expected_loss_weight_of_a_token_is_that_of_the_ordinary_objective():
    """Each token is noised in one of three rows, with three times the weight."""
    ids, generator = torch.zeros(30_000, 10, dtype=torch.long), torch.Generator().manual_seed(0)
    nets = network.new(**SHAPE, seed=0), block_network(4)
    plain, blocks = (objective.diffusion_targets(ids, net, generator=generator).weights.sum(0) for net in nets)
    torch.testing.assert_close(blocks, plain, rtol=0.15, atol=0)


@pytest.mark.parametrize("size", [1, 3, 4, 12])
def test_each_step_reveals_the_most_confident_predictions_of_the_first_block_with_masks(size):
    """Compared with the network run on each canvas by itself; equal confidences may be revealed in any order."""
    net, prompts = block_network(size), [[5, 6, 7], [9, 8, 7, 6, 5], [3]]
    done = masked.denoise(net, prompts, canvas=12, steps=24)
    for step in range(24):
        before = done.canvas_before(step)
        with torch.no_grad():
            probabilities = network.logits(net, network.prediction_states(net, before)).double().softmax(-1)
        for row, final, probability, revealed in zip(
            before, done.canvas, probabilities, done.step == step, strict=True
        ):
            hidden = row == network.mask_id(net)
            if not revealed.any():
                continue
            block = hidden & (torch.arange(12) // size == hidden.nonzero()[0] // size)
            confidence = probability.max(-1).values
            others = confidence[block & ~revealed]
            assert (revealed <= block).all() and (confidence[revealed].min() >= others - 1e-6).all()
            chosen = probability[revealed].gather(-1, final[revealed][:, None])[:, 0]
            assert (chosen >= confidence[revealed] - 1e-6).all()


@pytest.mark.parametrize("settings", [{"guidance": 0.8}, {"block": 4}])
def test_guidance_and_the_samplers_own_blocks_are_rejected(settings):
    with pytest.raises(UserError, match="sampled without guidance and with its own blocks"):
        masked.denoise_each(block_network(4), [[1, 2]], Sampling(canvas=10, **settings), [10])


def test_the_likelihood_bound_is_the_sum_over_blocks_each_given_those_before():
    net = block_network(4)
    prompt, completion = [5, 6, 7], [8, 9, 10, 11, 12, 13]
    options = {"samples": 2000, "canvas": 12, "eos": 0}
    whole = masked.log_likelihood(net, [prompt], [completion], **options)
    row, total = prompt + completion, 0.0
    for start, end in ((3, 4), (4, 8), (8, 9)):
        total += masked.log_likelihood(net, [row[:start]], [row[start:end]], **options).item()
    assert whole.item() == pytest.approx(total)  # all masks are enumerated


def test_a_block_of_one_token_has_the_exact_left_to_right_likelihood():
    net = block_network(1)
    row = [5, 6, 7, 8, 9]
    with torch.no_grad():
        ids = torch.tensor([[*row[:i], network.mask_id(net), *row[i + 1 :]] for i in (2, 3, 4)])
        logs = network.logits(net, network.prediction_states(net, ids)).log_softmax(-1)
    expected = sum(logs[i, i + 2, row[i + 2]].item() for i in range(3))
    assert masked.log_likelihood(net, [row[:2]], [row[2:]], samples=4).item() == pytest.approx(expected)


def test_training_sets_the_blocks_and_a_saved_model_keeps_them(tmp_path):
    net = loop.prepare_network(network.new(**SHAPE, seed=0), Objective(block=4), seed=0)
    network.save(net, None, tmp_path / "net")
    assert network.block_size(network.load(tmp_path / "net")[0]) == 4
    assert network.block_size(loop.prepare_network(net, Objective(), seed=0)) is None


def test_training_with_blocks_in_bfloat16_follows_that_in_float32(monkeypatch):
    """On a GPU training runs in bfloat16; here the same autocast is switched on for the CPU."""
    recipe = loop.Recipe(epochs=6, batch=4, learning_rate=3e-3, warmup_steps=2, width=10, seed=1)
    autocast, losses = torch.autocast, {}
    for precise in (True, False):
        monkeypatch.setattr(torch, "autocast", lambda kind, dtype, enabled: autocast(kind, dtype, not precise))  # noqa: B023
        net = loop.prepare_network(network.new(**SHAPE, seed=0), Objective(block=4), seed=0)
        losses[precise] = loop.fit(net, [row.tolist() for row in IDS], recipe, objective=Objective(block=4)).loss
        assert next(net.parameters()).dtype == torch.float32
    difference = (losses[True] - losses[False]).abs()
    assert 0 < difference.max() < 0.02 * losses[True].max()  # bfloat16 has eight bits
