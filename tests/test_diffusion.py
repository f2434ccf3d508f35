import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.sampling import denoise_alone
from reversal.models import network, smdm
from reversal.recall import masked
from reversal.recall.masked import denoise, log_likelihood
from reversal.recall.sampling import SCHEDULES, Sampling, timesteps

GOLDEN = Path(__file__).parent / "golden" / "smdm"
VOCAB, CANVAS = 30, 13
VARIANTS = {
    "greedy": {},
    "guided": {"guidance": 0.8},
    "random": {"order": "random"},
    "ancestral": {"order": "random", "temperature": 1.0},
    "warm": {"temperature": 0.7, "guidance": 0.5},
    "cosine": {"schedule": "cosine"},
    "geometric": {"schedule": "geometric"},
    "blocks": {"block": 4},
    "random blocks": {"block": 4, "order": "random"},
    "remasking": {"remasking": "low_confidence"},
    "remasking blocks": {"remasking": "low_confidence", "block": 5, "guidance": 0.8},
}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def net():
    tiny = network.new(causal=False, vocab=VOCAB, width=16, layers=2, heads=2, mlp=32, context=64, seed=0)
    with torch.no_grad():
        for weight in tiny.parameters():
            if weight.dim() > 1:
                weight.mul_(12)  # far from uniform, so that rounding decides no prediction
    return tiny


def prompts_of(lengths, seed=0):
    generator = seeded(seed)
    return [torch.randint(VOCAB, (length,), generator=generator).tolist() for length in lengths]


PROMPTS = prompts_of([3, 7, 5, 5, 9, 4, 12])


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a[:2] + a[3:4], b[:2] + b[3:4], strict=True))


def test_canvases_equal_those_of_the_reference_sampler():
    reference = smdm.load(GOLDEN / "mdm.safetensors", json.loads((GOLDEN / "config.json").read_text()), causal=False)
    cases = json.loads((GOLDEN / "samples.json").read_text())
    assert len(cases) == 48
    for _, group in itertools.groupby(
        sorted(cases, key=lambda case: (case["steps"], case["cfg_scale"])), key=lambda c: (c["steps"], c["cfg_scale"])
    ):
        group = list(group)
        found = denoise(
            reference,
            [case["prompt"] for case in group],
            canvas=24,
            steps=group[0]["steps"],
            guidance=group[0]["cfg_scale"],
        )
        assert found.canvas.tolist() == [case["output"] for case in group]


@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.integers(1, CANVAS - 1), min_size=1, max_size=4),  # an empty prompt leaves all positions tied
    steps=st.integers(1, 2 * CANVAS),
    guidance=st.sampled_from([0.0, 0.8, 2.0]),
    seed=st.integers(0, 1000),
)
def test_batches_give_what_one_prompt_at_a_time_gives(net, lengths, steps, guidance, seed):
    prompts = prompts_of(lengths, seed)
    settings = {"canvas": CANVAS, "steps": steps, "guidance": guidance}
    expected = [denoise_alone(net, prompt, **settings) for prompt in prompts]
    assert denoise(net, prompts, **settings).canvas.tolist() == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_size_of_batches_changes_nothing(net, variant, limit_batches):
    def run(size):
        limit_batches(size)
        return denoise(net, PROMPTS, canvas=CANVAS, steps=6, generator=seeded(), **VARIANTS[variant])

    assert same(run(1), run(3)) and same(run(3), run(100))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_canvas_before_a_step_predicts_what_that_step_reveals(net, variant):
    """Rebuild each canvas, run the network on it, and compare with the trajectory that was recorded."""
    options = VARIANTS[variant]
    found = denoise(net, PROMPTS, canvas=CANVAS, steps=6, generator=seeded(), **options)
    mask = network.mask_id(net)
    fixed = found.step == masked.FIXED
    start = found.canvas_before(0)
    assert torch.equal(start == mask, ~fixed) and torch.equal(start[fixed], found.canvas[fixed])
    assert torch.equal(found.canvas_before(6), found.canvas) and mask not in found.canvas
    for step in range(6):
        canvas, after = found.canvas_before(step), found.canvas_before(step + 1)
        logits = network.logits(net, network.hidden(net, canvas)).double()
        if w := options.get("guidance"):
            unguided = network.logits(net, network.hidden(net, canvas.masked_fill(fixed, mask))).double()
            logits = unguided + (1 + w) * (logits - unguided)
        probability = logits.softmax(-1)
        new = (canvas == mask) & (after != mask)
        if not options.get("temperature"):
            assert torch.equal(after[new], probability.argmax(-1)[new])
        final = found.step == step
        expected = probability.gather(-1, found.canvas[..., None].clamp(max=VOCAB - 1))[..., 0][final]
        assert torch.allclose(found.confidence[final], expected, atol=1e-5)


def test_revealed_tokens_are_the_most_confident(net):
    found = denoise(net, PROMPTS, canvas=CANVAS, steps=4)
    canvas = found.canvas_before(2)
    best = network.logits(net, network.hidden(net, canvas)).softmax(-1).amax(-1)
    for row in range(len(PROMPTS)):
        revealed, left = found.step[row] == 2, found.step[row] > 2
        if revealed.any() and left.any():
            assert best[row][revealed].min() >= best[row][left].max()


def test_a_batch_too_large_for_the_gpu_is_halved(net, limit_memory):
    expected = denoise(net, PROMPTS, canvas=CANVAS, steps=5, temperature=0.5, generator=seeded())
    tried = limit_memory(2)
    assert same(denoise(net, PROMPTS, canvas=CANVAS, steps=5, temperature=0.5, generator=seeded()), expected)
    assert max(tried) == len(PROMPTS)


def test_equally_confident_tokens_are_revealed_from_left_to_right():
    flat = network.new(causal=False, vocab=5, width=8, layers=1, heads=1, mlp=8, seed=0)
    with torch.no_grad():
        flat.lm_head.weight.zero_()
    found = denoise(flat, [[1]], canvas=5, steps=4)
    assert found.canvas.tolist() == [[1, 0, 0, 0, 0]]
    assert sorted(found.step[0].tolist()) == found.step[0].tolist()


def test_with_more_steps_than_masked_tokens_only_the_last_reveals_more_than_one(net):
    found = denoise(net, PROMPTS, canvas=CANVAS, steps=100)
    for step in found.step.tolist():
        assert all(count == 1 for at, count in Counter(s for s in step if s >= 0).items() if at < 99)


def predict_next(net, prompt):
    """Log-probabilities (V,) of the token after a prompt, by one mask."""
    ids = torch.tensor([[*prompt, network.mask_id(net)]])
    return network.logits(net, network.hidden(net, ids))[0, -1].log_softmax(-1)


def test_ancestral_sampling_reveals_at_uniform_times_and_draws_from_the_network(net):
    prompt = PROMPTS[0]
    found = denoise(net, [prompt] * 400, canvas=CANVAS, steps=5, order="random", temperature=1.0, generator=seeded())
    share = torch.bincount(found.step[found.step >= 0]) / (400 * (CANVAS - len(prompt)))
    assert torch.allclose(share, torch.full((5,), 0.2), atol=0.03)

    full = PROMPTS[-1]  # one token is free
    found = denoise(net, [full] * 2000, canvas=CANVAS, steps=1, order="random", temperature=1.0, generator=seeded())
    expected = predict_next(net, full).exp()
    assert torch.allclose(torch.bincount(found.canvas[:, -1], minlength=VOCAB) / 2000, expected, atol=0.035)


def test_the_same_seed_draws_the_same_canvases_and_another_seed_others(net):
    def run(seed):
        return denoise(net, PROMPTS, canvas=CANVAS, steps=6, temperature=1.0, generator=seeded(seed))

    assert same(run(1), run(1)) and not same(run(1), run(2))


def test_greedy_denoising_draws_no_random_numbers(net):
    before = torch.get_rng_state()
    denoise(net, PROMPTS, canvas=CANVAS, steps=3, guidance=0.8)
    assert torch.equal(torch.get_rng_state(), before)


def test_blocks_are_filled_from_left_to_right(net):
    found = denoise(net, PROMPTS[:3], canvas=CANVAS, steps=8, block=4)
    for prompt, step in zip(PROMPTS, found.step.tolist(), strict=False):
        free = step[len(prompt) :]
        blocks = [free[i : i + 4] for i in range(0, len(free), 4)]
        assert all(max(a) < min(b) for a, b in itertools.pairwise(blocks))


def test_one_block_equals_no_blocks(net):
    assert same(
        denoise(net, PROMPTS, canvas=CANVAS, steps=4, block=CANVAS), denoise(net, PROMPTS, canvas=CANVAS, steps=4)
    )


def test_remasking_reveals_as_many_tokens_and_masks_the_least_confident_again(net):
    prompts = prompts_of([2] * 12)
    plain = denoise(net, prompts, canvas=CANVAS, steps=6)
    found = denoise(net, prompts, canvas=CANVAS, steps=6, remasking="low_confidence")
    assert len(found.remasked) > 0 and len(plain.remasked) == 0
    mask = network.mask_id(net)
    for step in range(7):
        assert torch.equal((found.canvas_before(step) == mask).sum(1), (plain.canvas_before(step) == mask).sum(1))
    for row, position, token, revealed_at, masked_at in found.remasked.tolist():
        assert found.canvas_before(revealed_at)[row, position] == mask
        assert found.canvas_before(masked_at)[row, position] == token
        assert found.canvas_before(masked_at + 1)[row, position] == mask


def test_schedules_run_from_one_to_almost_zero_at_different_speeds():
    schedules = {schedule: timesteps(schedule, 8) for schedule in SCHEDULES}
    for t in schedules.values():
        assert t[0] == 1 and 0 < t[-1] < 1e-4 and (t.diff() < 0).all()
    assert schedules["cosine"][4] > schedules["linear"][4] > schedules["geometric"][4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"canvas": 11}, "prompt 6 has 12 tokens; the canvas holds 11"),
        ({"canvas": 12}, "prompt 6 fills all 12 tokens of the canvas; there is no room for an answer"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": 1.5}, "steps is 1.5"),
        ({"guidance": -1.0}, "guidance is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"order": "left"}, "order is 'left'; it must be one of confidence, random"),
        ({"schedule": "square"}, "schedule is 'square'; it must be one of linear, cosine, geometric"),
        ({"remasking": "all"}, "remasking is 'all'; it must be one of none, low_confidence"),
        ({"remasking": "low_confidence", "order": "random"}, "remasking needs the order 'confidence'"),
        ({"block": 0}, "block is 0"),
        ({"block": 1}, "prompt 0 leaves 10 blocks of 1 tokens; 4 steps are too few for them"),
        ({"precision": "float16"}, "precision is 'float16'"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(net, options, message):
    with pytest.raises(ValueError, match=message) as error:
        denoise(net, PROMPTS, **({"canvas": CANVAS, "steps": 4} | options))
    assert "\n" not in str(error.value)


def log_p(net, row, position):
    """The summed log-probability of the tokens of `row` at the positions `position`, which are masked."""
    canvas = [network.mask_id(net) if i in position else token for i, token in enumerate(row)]
    logs = network.logits(net, network.hidden(net, torch.tensor([canvas]))).double().log_softmax(-1)[0]
    return sum(logs[i, row[i]].item() for i in position)


def test_the_bound_of_one_token_is_its_log_probability(net):
    found = log_likelihood(net, PROMPTS, [[i] for i in range(7)], samples=8, generator=seeded())
    expected = [predict_next(net, prompt)[i].item() for i, prompt in enumerate(PROMPTS)]
    assert found.tolist() == pytest.approx(expected, abs=1e-5)


def test_the_bound_of_two_tokens_is_the_mean_over_both_orders(net):
    prompt, answer = PROMPTS[0], [11, 12]
    row, a, b = prompt + answer, len(prompt), len(prompt) + 1
    both, alone = log_p(net, row, {a, b}), log_p(net, row, {a}) + log_p(net, row, {b})
    found = log_likelihood(net, [prompt], [answer], samples=64, generator=seeded())
    assert found.item() == pytest.approx(both / 2 + alone / 2, abs=1e-5)


def test_sampled_bounds_scatter_around_the_exact_one(net):
    prompt, answer = PROMPTS[0], [11, 12, 13, 14, 15]
    exact = log_likelihood(net, [prompt], [answer], samples=32)
    found = log_likelihood(net, [prompt] * 60, [answer] * 60, samples=20, generator=seeded())
    scatter = found.std()
    assert found.mean().item() == pytest.approx(exact.item(), abs=4 * scatter.item() / 60**0.5)
    assert scatter > 0


def test_every_number_of_masked_tokens_is_equally_frequent():
    masks, weight = masked.draw_masks(12, 120, generator=seeded())
    assert Counter(masks.sum(1).tolist()) == {k: 10 for k in range(1, 13)}
    assert weight.sum().item() == pytest.approx(1)
    masks, weight = masked.draw_masks(3, 8, generator=None)
    assert len(masks) == 7 and weight.sum().item() == pytest.approx(1)
    for k in (1, 2, 3):
        assert weight[masks.sum(1) == k].sum().item() == pytest.approx(1 / 3)


def test_likelihoods_of_a_padded_batch_are_those_of_each_row_alone(net):
    answers = [[1, 2], [3], [4, 5, 6], [7], [8, 9], [1], [2]]
    together = log_likelihood(net, PROMPTS, answers, samples=16)
    for i, (prompt, answer) in enumerate(zip(PROMPTS, answers, strict=True)):
        alone = log_likelihood(net, [prompt], [answer], samples=16)
        assert together[i].item() == pytest.approx(alone.item(), abs=1e-5)


def test_a_canvas_is_filled_with_end_tokens(net):
    found = log_likelihood(net, [[1, 2]], [[3]], samples=2, canvas=5, eos=0)
    assert found.item() == pytest.approx(log_p(net, [1, 2, 3, 0, 0], {2}), abs=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples is 0"),
        ({"completions": [[]]}, "completion 0 is empty"),
        ({"canvas": 3, "eos": 0}, "row 0 has 4 tokens; the canvas holds 3"),
    ],
)
def test_impossible_likelihoods_are_refused(net, options, message):
    with pytest.raises(ValueError, match=message):
        log_likelihood(net, **({"prompts": [[1, 2]], "completions": [[3, 4]], "samples": 4} | options))


@pytest.mark.parametrize("variant", VARIANTS)
def test_several_numbers_of_steps_give_what_each_gives_alone(net, variant):
    options = {"canvas": CANVAS, **VARIANTS[variant]}
    numbers = [5, 8, 14, 20]
    together = masked.denoise_each(net, PROMPTS, Sampling(**options), numbers, generator=seeded())
    generator = seeded()
    for number in numbers:
        alone = denoise(net, PROMPTS, steps=number, generator=generator, **options)
        assert same(together[number], alone) and torch.equal(together[number].remasked, alone.remasked), number


def test_steps_beyond_the_number_of_masked_tokens_cost_nothing(net, monkeypatch):
    passes = []
    hidden = network.hidden
    monkeypatch.setattr(network, "hidden", lambda *args: passes.append(len(args[1])) or hidden(*args))
    masked.denoise_each(net, PROMPTS, Sampling(CANVAS), [CANVAS])
    once = sum(passes)
    passes.clear()
    masked.denoise_each(net, PROMPTS, Sampling(CANVAS), [CANVAS, 2 * CANVAS, 3 * CANVAS])
    assert sum(passes) == once
