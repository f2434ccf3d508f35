"""LLaDA and Dream: the reference's logits, and all that depends on the mask's id and on where a token is predicted."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from input_fixtures import write_checkpoint
from safetensors.torch import load_file

from benchmarks import naive_trace
from reversal.models import folders, hub, layouts, network, tokens
from reversal.models.folders import ModelError
from reversal.recall import masked
from reversal.storage import scoring
from reversal.tracing import engine, llama, study
from reversal.training import objective

GOLDEN = Path(__file__).parent / "golden"
SITES = [("state", None), ("mlp", None), ("attn", None), ("state", "mlp"), ("state", "attn")]


@pytest.fixture(scope="module", params=["llada", "dream"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def net(name):
    return layouts.load(GOLDEN / name)


def naive_logits(net, canvas):
    """Logits (T, V) of each token of one canvas, −∞ for the mask, from transformers' own output."""
    logits = net(input_ids=torch.tensor([canvas])).logits[0].detach()
    logits[:, net.config.mask_token_id] = -torch.inf
    shifted = isinstance(net, layouts.DREAM.kind)
    return torch.stack([logits[max(i - 1, 0) if shifted else i] for i in range(len(canvas))])


def test_logits_are_those_of_the_reference(net, name):
    known = load_file(GOLDEN / name / "logits.safetensors")
    ids, expected = known["input_ids"], known["shifted_logits" if name == "dream" else "logits"]
    found = network.logits(net, network.prediction_states(net, ids))
    others = torch.arange(expected.shape[-1]) != network.mask_id(net)
    torch.testing.assert_close(found[..., others], expected[..., others], atol=1e-4, rtol=0)
    assert (ids == network.mask_id(net)).any() and found.softmax(-1)[..., network.mask_id(net)].max() == 0


def test_a_saved_network_is_the_same_one(net, name, tmp_path):
    network.save(net, None, tmp_path / "net")
    again, _ = network.load(tmp_path / "net", device="cpu")
    ids = load_file(GOLDEN / name / "logits.safetensors")["input_ids"]
    assert torch.equal(network.prediction_states(again, ids), network.prediction_states(net, ids))
    assert network.mask_id(again) == 311 < network.vocab(again) == 320 and type(again) is type(net)
    assert again.config.shifted == (name == "dream")


@pytest.mark.parametrize("guidance", [0.0, 0.8])
def test_a_trajectory_is_that_of_a_naive_loop(net, guidance):
    # Without a prompt, all positions would have the same logits up to rounding.
    prompts, length, steps = [[5, 9, 40], [7], [291, 260, 159, 182, 198]], 12, 5
    found = masked.denoise(net, prompts, canvas=length, steps=steps, guidance=guidance)
    mask, times = network.mask_id(net), torch.linspace(1, 1e-5, steps + 1)
    for row, prompt in enumerate(prompts):
        canvas = [*prompt, *[mask] * (length - len(prompt))]
        for step in range(steps):
            assert found.canvas_before(step)[row].tolist() == canvas
            logits = naive_logits(net, canvas)
            if guidance:
                blank = naive_logits(net, [mask] * len(prompt) + canvas[len(prompt) :])
                logits = blank + (1 + guidance) * (logits - blank)
                logits[:, mask] = -torch.inf
            confidence, token = logits.softmax(-1).max(-1)
            masks = [i for i in range(length) if canvas[i] == mask]
            count = len(masks) if step == steps - 1 else int(len(masks) * (1 - times[step + 1] / times[step]))
            order = sorted(masks, key=lambda i: -confidence[i])
            # Rounding, which differs between machines, decides neither which positions are revealed nor their tokens.
            assert count == len(masks) or confidence[order[count - 1]] > confidence[order[count]] + 1e-4
            first, second = logits[order[:count]].topk(2).values.unbind(-1)
            assert (first > second + 1e-3).all()
            for i in order[:count]:
                canvas[i] = token[i].item()
        assert found.canvas[row].tolist() == canvas and mask not in canvas


def test_a_likelihood_is_the_mean_over_all_masks(net):
    """A completion of two tokens can be masked in three ways: either token, or both."""
    prompt, completion = [5, 9, 40], [17, 300]
    [found] = masked.log_likelihood(net, [prompt], [completion], samples=10)
    row, expected = prompt + completion, 0.0
    for count in (1, 2):
        for masks in itertools.combinations((3, 4), count):
            canvas = [network.mask_id(net) if i in masks else row[i] for i in range(5)]
            logs = naive_logits(net, canvas).log_softmax(-1)
            expected += sum(logs[i, row[i]] for i in masks) * 2 / count / (2 if count == 1 else 1) / 2
    assert found.item() == pytest.approx(expected.item(), abs=1e-4)


def test_the_loss_is_that_of_the_masked_tokens(net):
    ids = torch.randint(0, 300, (3, 6), generator=torch.Generator().manual_seed(0))
    batch = objective.diffusion_targets(ids, net, generator=torch.Generator().manual_seed(1))
    expected = 0.0
    for row, canvas in enumerate(batch.inputs.tolist()):
        logs = naive_logits(net, canvas).log_softmax(-1)
        expected -= sum(batch.weights[row, i] * logs[i, ids[row, i]] for i in range(6) if batch.weights[row, i])
    torch.testing.assert_close(objective.compute_loss(net, batch).detach(), expected)
    torch.testing.assert_close(objective.compute_loss_everywhere(net, batch).detach(), expected)


def traced_prompt(net):
    """What to trace: two masked tokens after four others, by the positions that predict them."""
    ids = torch.tensor([5, 9, 40, 77, *[network.mask_id(net)] * 3])
    answer = {network.prediction_position(net, 4): 17, network.prediction_position(net, 5): 300}
    noise = engine.draw_noise(net, (1, 3), 2, generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "subject": (1, 3), "answer": answer, "noise": noise}


@pytest.mark.parametrize(("kind", "severed"), SITES)
def test_a_trace_is_that_of_one_state_at_a_time(net, kind, severed):
    how = {"kind": kind, "severed": severed, "window": 2}
    assert llama.is_supported(net)
    found = engine.trace(net, **traced_prompt(net), **how)
    clean, corrupted, restored = naive_trace.trace(net, **traced_prompt(net), **how)
    torch.testing.assert_close(found.log_restored, restored.double().mean(-1), atol=2e-4, rtol=1e-5)
    assert found.log_clean == pytest.approx(clean.item(), abs=2e-4)
    assert found.log_corrupted == pytest.approx(corrupted.mean().item(), abs=2e-4)
    logs = naive_logits(net, traced_prompt(net)["input_ids"].tolist()).log_softmax(-1)
    assert found.log_clean == pytest.approx((logs[4, 17] + logs[5, 300]).item(), abs=2e-4)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # some CPUs have no 16-bit products
def test_weights_in_16_bits_are_traced_without_a_copy_and_base_runs_stay_exact(name):
    """There is no second copy of the weights, and the base runs give what float32 gives for the same weights."""
    net = layouts.load(GOLDEN / name, dtype=torch.bfloat16)
    assert llama._convert_blocks(net, torch.bfloat16) == list(net.model.layers)
    found = engine.trace(net, **traced_prompt(net), precision="bfloat16")
    widened = layouts.load(GOLDEN / name, dtype=torch.bfloat16).float()
    # The noise is added in the weights' own type.
    problem = engine.Problem(
        engine.embed(net, traced_prompt(net)["input_ids"]).float(),
        engine.add_noise(net, traced_prompt(net)["input_ids"], (1, 3), traced_prompt(net)["noise"]).float(),
        traced_prompt(net)["answer"],
    )
    expected = engine.score_runs(engine.restore(widened, [problem])[0])
    assert found.log_clean == pytest.approx(expected.log_clean, abs=1e-5)
    assert found.log_corrupted == pytest.approx(expected.log_corrupted, abs=1e-5)
    torch.testing.assert_close(found.log_restored, expected.log_restored, atol=0.2, rtol=0)


def test_a_study_traces_the_answer_where_it_is_predicted(net, generated, checkpoint):
    reader = tokens.read_checkpoint_tokenizer(checkpoint, net.config.eos_token_id)
    row = generated[1][0]
    example = tokens.encode(reader, row)
    revealed = [[i, reader.decode([example.ids[i]]), 0, 1.0] for i in range(example.prompt, len(example.ids))]
    completion = {
        "correct": True,
        "ids": example.ids,
        "prompt_tokens": example.prompt,
        "revealed": revealed,
        "remasked": [],
    }
    settings = study.Tracing(corruptions={"gaussian": ["state"]}, draws=1)
    *_, traces, _ = study.trace_split(net, reader, [row], [completion], settings)
    canvas = example.ids[: example.prompt] + [network.mask_id(net)] * (len(example.ids) - example.prompt)
    logs = naive_logits(net, canvas).log_softmax(-1)
    expected = sum(logs[i, example.ids[i]] for i in range(*example.answer))
    assert traces[0].arrays["log_probability.clean"][0] == pytest.approx(expected.item(), abs=1e-2)


def test_a_prompt_is_scored_where_its_answer_is_predicted(net, generated, checkpoint):
    reader = tokens.read_checkpoint_tokenizer(checkpoint, net.config.eos_token_id)
    row = generated[1][0]
    lm = scoring.LanguageModel(net, reader, 120)
    sequence = scoring.encode_question(lm, row)
    [found], _ = scoring.score_answers(net, [sequence])
    example = tokens.encode(reader, row)
    logs = naive_logits(net, sequence.ids).log_softmax(-1)
    expected = sum(logs[i, example.ids[i]] for i in range(*example.answer))
    assert found.item() == pytest.approx(expected.item(), abs=1e-3)


@pytest.fixture(scope="module")
def checkpoint(name, tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp(name), name)


def test_a_checkpoint_in_shards_becomes_a_model_folder(net, name, checkpoint, tmp_path):
    layouts.convert(tmp_path / "base", folder=checkpoint)
    again, reader = network.load(tmp_path / "base", device="cpu")
    for converted, original in zip(again.parameters(), net.parameters(), strict=True):
        assert torch.equal(converted, original)
    assert len(reader) == 318 and reader.eos_token_id == again.config.eos_token_id


def test_an_unpinned_repository_is_not_downloaded(name, tmp_path):
    with pytest.raises(ModelError, match="owner/model is unpinned; allowed: its commit and the SHA-256 of its files"):
        layouts.convert(tmp_path, repo="owner/model", revision=hub.UNPINNED, files=hub.UNPINNED)


def test_a_tokenizer_in_qwen2s_older_files_is_read_too(tmp_path):
    """Dream's repository has vocab.json, merges.txt and added tokens, which transformers' Qwen2Tokenizer reads."""
    whole = tokens.train_tokenizer(["a few words of a few"], 300)
    whole.backend_tokenizer.model.save(str(tmp_path))
    added = {"<|endoftext|>": len(whole), "<|mask|>": len(whole) + 1}
    special = {str(i): {"content": word, "special": True, "normalized": False} for word, i in added.items()}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": special}))
    found = tokens.read_checkpoint_tokenizer(tmp_path, added["<|endoftext|>"])
    assert found("a few words")["input_ids"] == whole("a few words")["input_ids"]
    assert found.eos_token == "<|endoftext|>" and found.convert_tokens_to_ids("<|mask|>") == added["<|mask|>"]


def test_a_folder_that_needs_a_layout_is_recognised_without_torch():
    assert {*folders.PUBLISHED} == {*layouts.LAYOUTS}
