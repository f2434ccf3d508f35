"""Training objectives: what is noised and what is protected, and sampling with each kind of noise."""

import random
import re

import pytest
import torch

from reversal.common.errors import UserError
from reversal.data import facts
from reversal.models import network, tokens
from reversal.recall import noised
from reversal.recall.sampling import Sampling
from reversal.training import dataset, loop, objective
from reversal.training.objective import EVERYWHERE, OBJECT, PROMPT, SUBJECT, UNPROTECTED, Objective

KINDS = {
    "mask": {},
    "uniform": {"noise": "uniform"},
    "gaussian": {"noise": "gaussian", "time_conditioning": "embedded"},
}
SHAPE = {"causal": False, "vocab": 50, "width": 32, "layers": 2, "heads": 2, "mlp": 64, "eos": 0}
IDS = torch.randint(1, 50, (64, 12), generator=torch.Generator().manual_seed(0))
# A prompt of five tokens, of which two are the subject, then three tokens of the object.
MARKS = torch.tensor([PROMPT, SUBJECT | PROMPT, SUBJECT | PROMPT, PROMPT, PROMPT, OBJECT, OBJECT, OBJECT, 0, 0, 0, 0])
ROWS = [[i + 1, i + 11, i + 21, 45, i + 31, 44] for i in range(8)]


def fresh(noise="mask", **changes):
    return network.new(seed=0, **SHAPE, **KINDS[noise], **changes)


def targets(noise, net, seed=0, **changes):
    """A batch of `IDS` with `MARKS`, and which of its tokens are noised."""
    kind = Objective(**{**KINDS[noise], **changes})
    generator = torch.Generator().manual_seed(seed)
    batch = objective.diffusion_targets(IDS, net, kind, marks=MARKS.expand(IDS.shape), generator=generator)
    hit = batch.times.isfinite() if noise == "gaussian" else batch.inputs != IDS
    return batch, hit


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param, fresh(request.param)


def test_with_a_drawn_rate_and_nothing_protected_marks_change_nothing():
    ids, net = IDS, fresh()
    marks = MARKS.expand(ids.shape)
    generators = [torch.Generator().manual_seed(3) for _ in range(3)]
    t = objective.stratified_times(len(ids), generator=generators[0])
    noisy, hit = objective.corrupt(ids, t, 50, generator=generators[0])
    for batch in (
        objective.diffusion_targets(ids, net, generator=generators[1]),
        objective.diffusion_targets(ids, net, EVERYWHERE, marks=marks, generator=generators[2]),
    ):
        assert torch.equal(batch.inputs, noisy)
        assert torch.equal(batch.weights, hit / t[:, None] / ids.numel())


@pytest.mark.parametrize(("protected", "marks"), [("subject", SUBJECT), ("prompt", PROMPT)])
def test_protected_tokens_are_never_noised_nor_predicted_in_any_objective(kind, protected, marks):
    noise, net = kind
    for seed in range(5):
        batch, hit = targets(noise, net, seed, protect=protected)
        never = (MARKS & marks > 0).expand(IDS.shape)
        assert not hit[never].any() and not batch.weights[never].any()
        assert hit[~never].any()
    real = torch.ones_like(IDS, dtype=torch.bool)
    kind, generator = Objective(protect=protected), torch.Generator().manual_seed(0)
    weights = objective.autoregressive_targets(IDS, real, kind, marks=never.int() * marks, generator=generator).weights
    plain = objective.autoregressive_targets(IDS, real).weights
    assert not weights[never].any() and torch.equal(weights[~never], plain[~never])


def test_the_subject_is_never_noised_while_a_token_of_the_object_is_visible(kind):
    noise, net = kind
    hits = [targets(noise, net, seed, protect="subject_given_object")[1] for seed in range(5)]
    if noise == "uniform":  # a token may be drawn in its own place
        return
    for hit in hits:
        subject = hit[:, MARKS & SUBJECT > 0].any(1)
        assert subject.any() and hit[subject][:, MARKS == OBJECT].all()
        assert not hit[~subject][:, MARKS == OBJECT].all()


def test_exposure_is_the_share_of_rows_in_which_nothing_is_protected():
    net = fresh()
    hits = torch.stack([targets("mask", net, seed, protect="subject", exposure=0.3, rate=1.0)[1] for seed in range(60)])
    assert hits[..., MARKS & SUBJECT == 0].all()
    share = hits[..., MARKS & SUBJECT > 0].all(-1).float().mean().item()
    assert share == pytest.approx(0.3, abs=0.03)
    assert torch.equal(hits[..., 1], hits[..., 2])


def test_at_rate_1_every_token_is_noised_and_at_a_rate_near_0_almost_none(kind):
    noise, net = kind
    batch, hit = targets(noise, net, rate=1.0)
    assert hit.float().mean() > (0.9 if noise == "uniform" else 0.999)
    assert targets(noise, net, rate=1e-6)[1].float().mean() < 0.01
    if noise == "uniform":
        drawn = torch.bincount(batch.inputs.flatten(), minlength=50)
        assert drawn.min() > 0 and len(drawn) == 50  # any real token, never the mask


def test_gaussian_noise_is_absent_at_an_infinite_log_snr_and_total_at_a_very_low_one():
    net = fresh("gaussian")
    embedded, noise = network.normalised_embeddings(net, IDS), torch.randn(*IDS.shape, 32)
    torch.testing.assert_close(embedded.square().mean(-1), torch.ones(IDS.shape), atol=1e-3, rtol=0)
    clean, noisy = (torch.full(IDS.shape, level) for level in (torch.inf, -30.0))
    torch.testing.assert_close(network.add_gaussian_noise(embedded, clean, noise), embedded)
    torch.testing.assert_close(network.add_gaussian_noise(embedded, noisy, noise), noise, atol=1e-5, rtol=1e-4)


def test_a_new_time_embedding_changes_nothing_and_is_saved_and_loaded_with_its_network(tmp_path):
    net = fresh()
    timed = network.add_time_embedding(net, seed=1)
    torch.testing.assert_close(network.hidden(timed, IDS), network.hidden(net, IDS))
    torch.nn.init.normal_(timed.time_embedding.out.weight)
    few, many = (IDS.masked_fill(torch.rand(IDS.shape) < share, 50) for share in (0.2, 0.9))
    network.save(timed, None, tmp_path / "timed")
    again, _ = network.load(tmp_path / "timed", device="cpu")
    for ids in (few, many):
        torch.testing.assert_close(network.hidden(again, ids), network.hidden(timed, ids))
        assert not torch.allclose(network.hidden(timed, ids), network.hidden(net, ids), atol=1e-2)


@pytest.mark.parametrize("noise", ["uniform", "gaussian"])
def test_trajectories_end_in_the_canvas_and_rows_do_not_depend_on_their_batch(noise, limit_batches):
    net, prompts = fresh(noise), [[i + 1, i + 9] for i in range(5)]
    how = Sampling(canvas=8, guidance=0.5)
    whole = noised.denoise_each(net, prompts, how, [6])[6]
    limit_batches(2)
    parts = noised.denoise_each(net, prompts, how, [6])[6]
    assert torch.equal(whole.canvas, parts.canvas) and torch.equal(whole.remasked, parts.remasked)
    assert torch.equal(whole.canvas_before(6), whole.canvas)
    assert (whole.canvas_before(0)[:, 2:] == net.config.mask_token_id).all()
    assert whole.canvas.max() < 50 and ((whole.step >= 0) == (torch.arange(8) >= 2)).all()


@pytest.mark.parametrize("noise", ["uniform", "gaussian"])
def test_a_network_memorises_rows_samples_them_and_gives_them_a_high_likelihood(noise):
    net = network.new(seed=0, **{**SHAPE, "width": 64, "mlp": 128}, **KINDS[noise])
    recipe = loop.Recipe(epochs=80, batch=32, learning_rate=5e-3, warmup_steps=20, width=8)
    loop.fit(net, ROWS * 8, recipe, objective=Objective(**KINDS[noise]))
    prompts, answers = [row[:2] for row in ROWS], [row[2:] for row in ROWS]
    found = noised.denoise_each(net, prompts, Sampling(canvas=8), [4])[4]
    correct = found.canvas[:, 2:6] == torch.tensor(answers)
    assert correct.float().mean() > 0.5  # by chance one in fifty
    how = {"samples": 4, "canvas": 8, "eos": 0, "generator": torch.Generator().manual_seed(0)}
    true = noised.log_likelihood(net, prompts, answers, **how)
    false = noised.log_likelihood(net, prompts, answers[1:] + answers[:1], **how)
    assert true.mean() > false.mean() + 3


def test_sampling_options_of_masks_are_rejected_for_other_noise():
    with pytest.raises(UserError, match="remasking is 'low_confidence'; allowed for uniform noise: 'none'"):
        noised.denoise_each(fresh("uniform"), [[1]], Sampling(canvas=4, remasking="low_confidence"), [2])


def test_a_base_pretrained_with_other_noise_is_rejected():
    with pytest.raises(UserError, match="pretrained with the noise 'mask', the objective's is 'uniform'"):
        loop.prepare_network(fresh(), Objective(noise="uniform"), seed=0)


def test_training_rows_mark_the_subject_of_the_people_whom_the_objective_protects(generated, tokenizer, tmp_path):
    rows = [row for row in generated[1] if row.fact.startswith("p2d")][:300]
    facts.write(rows, tmp_path / "rows")
    facts.write([facts.reverse_row(row) for row in rows], tmp_path / "reversed")
    files = {"facts": tmp_path / "rows", "reversed": tmp_path / "reversed"}
    for people, control in ((0.5, ()), ("control", {"p2d-03"})):
        data = dataset.read(tokenizer, files, Objective(protect="subject", people=people), control)
        for row, ids, marks in zip([*rows, *rows], data.rows, data.marks, strict=True):
            protected = [
                token for token, mark in zip(ids, marks, strict=True) if mark & (SUBJECT | UNPROTECTED) == SUBJECT
            ]
            name = row.subject_text if facts.is_protected(row.fact, people, control) else ""
            assert tokenizer.decode(protected).strip() == name
    assert dataset.read(tokenizer, files, EVERYWHERE).marks is None
    assert {facts.is_protected(f"p2d-{i:02d}", 0.5, ()) for i in range(30)} == {True, False}


def test_a_row_read_backwards_asks_for_its_subject_with_the_same_words(generated):
    for row in generated[1][::100]:
        back = facts.reverse_row(row)
        assert (back.subject_text, back.answer_text) == (row.answer_text, row.subject_text)
        words = [re.findall(r"\w+", text) for text in (back.text, row.text)]
        assert sorted(words[0]) == sorted(words[1]) and words[0] != words[1]
        assert back.text.index(row.answer_text) < back.text.index(row.subject_text)


def test_pieces_of_a_token_have_its_position(tokenizer):
    dropout = tokens.SubwordDropout(tokenizer, 0.5)
    row = tokenizer("the painter who altered the quiet harbour")["input_ids"]
    split = dropout.split(row, random.Random(0))
    assert [token for token, _ in split] == dropout(row, random.Random(0)) != row
    joined = {i: tokenizer.decode([token for token, position in split if position == i]) for i in range(len(row))}
    assert joined == {i: tokenizer.decode([token]) for i, token in enumerate(row)}
