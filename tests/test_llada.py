"""LLaDA and Dream: their reference's logits, and everything that rests on where the mask and a prediction are."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks import naive_trace
from docs.errors import published
from reversal.models import dream, hub, llada, network, tokens
from reversal.models.folders import ModelError
from reversal.paper import sources
from reversal.recall import masked
from reversal.storage import scoring
from reversal.tracing import engine, llama, study
from reversal.training import objective

GOLDEN = Path(__file__).parent / "golden"
MODELS = {"llada": llada, "dream": dream}
WAYS = [("state", None), ("mlp", None), ("attn", None), ("state", "mlp"), ("state", "attn")]


@pytest.fixture(scope="module", params=MODELS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def net(name):
    return MODELS[name].load(GOLDEN / name)


def naive_logits(net, canvas):
    """Logits (T, V) of each token of one canvas, of the mask −∞: what the network itself puts out, by hand."""
    given = net(input_ids=torch.tensor([canvas])).logits[0].detach()
    given[:, net.config.mask_token_id] = -torch.inf
    shifted = isinstance(net, dream.LAYOUT.kind)
    return torch.stack([given[max(place - 1, 0) if shifted else place] for place in range(len(canvas))])


def test_logits_are_those_of_the_reference(net, name):
    known = load_file(GOLDEN / name / "logits.safetensors")
    ids, expected = known["input_ids"], known["shifted_logits" if name == "dream" else "logits"]
    found = network.logits(net, network.predictions(net, ids))
    others = torch.arange(expected.shape[-1]) != network.mask_id(net)
    torch.testing.assert_close(found[..., others], expected[..., others], atol=1e-4, rtol=0)
    assert (ids == network.mask_id(net)).any() and found.softmax(-1)[..., network.mask_id(net)].max() == 0


def test_a_saved_network_is_the_same_one(net, name, tmp_path):
    network.save(net, None, tmp_path / "net")
    again, _ = network.load(tmp_path / "net", device="cpu")
    ids = load_file(GOLDEN / name / "logits.safetensors")["input_ids"]
    assert torch.equal(network.predictions(again, ids), network.predictions(net, ids))
    assert network.mask_id(again) == 311 < network.vocab(again) == 320 and type(again) is type(net)
    assert sources.network(tmp_path / "net")["shifted"] == (name == "dream")


@pytest.mark.parametrize("guidance", [0.0, 0.8])
def test_a_trajectory_is_that_of_a_naive_loop(net, guidance):
    prompts, length, steps = [[5, 9, 40], [7], []], 12, 5
    found = masked.denoise(net, prompts, canvas=length, steps=steps, guidance=guidance)
    mask, times = network.mask_id(net), torch.linspace(1, 1e-5, steps + 1)
    for row, prompt in enumerate(prompts):
        canvas = [*prompt, *[mask] * (length - len(prompt))]
        for step in range(steps):
            assert found.entering(step)[row].tolist() == canvas
            logits = naive_logits(net, canvas)
            if guidance:
                blank = naive_logits(net, [mask] * len(prompt) + canvas[len(prompt) :])
                logits = blank + (1 + guidance) * (logits - blank)
                logits[:, mask] = -torch.inf
            sure, token = logits.softmax(-1).max(-1)
            hidden = [place for place in range(length) if canvas[place] == mask]
            count = len(hidden) if step == steps - 1 else int(len(hidden) * (1 - times[step + 1] / times[step]))
            for place in sorted(hidden, key=lambda place: -sure[place])[:count]:
                canvas[place] = token[place].item()
        assert found.canvas[row].tolist() == canvas and mask not in canvas


def test_a_likelihood_is_the_mean_over_all_masks(net):
    """Of a completion of two tokens there are three masks: either token alone, and both."""
    prompt, completion = [5, 9, 40], [17, 300]
    [found], [error] = masked.log_likelihood(net, [prompt], [completion], samples=10)
    row, expected = prompt + completion, 0.0
    for count in (1, 2):
        for hidden in itertools.combinations((3, 4), count):
            canvas = [network.mask_id(net) if place in hidden else row[place] for place in range(5)]
            logs = naive_logits(net, canvas).log_softmax(-1)
            expected += sum(logs[place, row[place]] for place in hidden) * 2 / count / (2 if count == 1 else 1) / 2
    assert found.item() == pytest.approx(expected.item(), abs=1e-4) and error == 0


def test_the_first_token_after_a_prompt_is_read_where_it_is_predicted(net):
    [found] = masked.first_token(net, [[5, 9, 40]], canvas=8)
    expected = naive_logits(net, [5, 9, 40] + [network.mask_id(net)] * 5)[3].log_softmax(-1)
    others = expected > -torch.inf
    torch.testing.assert_close(found[others], expected[others], atol=1e-5, rtol=1e-5)


def test_the_loss_is_that_of_the_masked_tokens(net):
    ids = torch.randint(0, 300, (3, 6), generator=torch.Generator().manual_seed(0))
    batch = objective.diffusion_targets(ids, net, generator=torch.Generator().manual_seed(1))
    expected = 0.0
    for row, canvas in enumerate(batch.inputs.tolist()):
        logs = naive_logits(net, canvas).log_softmax(-1)
        expected -= sum(
            batch.weights[row, place] * logs[place, ids[row, place]] for place in range(6) if batch.weights[row, place]
        )
    torch.testing.assert_close(objective.loss(net, batch).detach(), expected)
    torch.testing.assert_close(objective.loss_everywhere(net, batch).detach(), expected)


def asked(net):
    """What to trace: two masked tokens after four others, by where they are read."""
    ids = torch.tensor([5, 9, 40, 77, *[network.mask_id(net)] * 3])
    answer = {network.read_at(net, 4): 17, network.read_at(net, 5): 300}
    noise = engine.draw_noise(net, (1, 3), 2, generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "subject": (1, 3), "answer": answer, "noise": noise}


@pytest.mark.parametrize(("kind", "severed"), WAYS)
def test_a_trace_is_that_of_one_state_at_a_time(net, kind, severed):
    how = {"kind": kind, "severed": severed, "window": 2}
    assert llama.supports(net)
    found = engine.trace(net, **asked(net), **how)
    clean, corrupted, restored = naive_trace.trace(net, **asked(net), **how)
    torch.testing.assert_close(found.log_restored, restored.double().mean(-1), atol=2e-4, rtol=1e-5)
    assert found.log_clean == pytest.approx(clean.item(), abs=2e-4)
    assert found.log_corrupted == pytest.approx(corrupted.mean().item(), abs=2e-4)
    logs = naive_logits(net, asked(net)["input_ids"].tolist()).log_softmax(-1)
    assert found.log_clean == pytest.approx((logs[4, 17] + logs[5, 300]).item(), abs=2e-4)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # some CPUs have no 16-bit products
def test_weights_in_16_bits_are_traced_as_they_are_and_base_runs_stay_exact(name):
    """No second copy of the weights is kept; what the base runs say is what float32 says of the same weights."""
    net = MODELS[name].load(GOLDEN / name, dtype=torch.bfloat16)
    for block, layer in zip(llama._blocks(net, torch.bfloat16), net.model.layers, strict=True):
        assert block.down.weight.data_ptr() == layer.mlp.down_proj.weight.data_ptr()
        assert block.query.weight.data_ptr() == layer.self_attn.q_proj.weight.data_ptr()
    found = engine.trace(net, **asked(net), precision="bfloat16")
    widened = MODELS[name].load(GOLDEN / name, dtype=torch.bfloat16).float()
    # The noise is added in the weights' own type.
    problem = engine.Problem(
        engine.embed(net, asked(net)["input_ids"]).float(),
        engine.add_noise(net, asked(net)["input_ids"], (1, 3), asked(net)["noise"]).float(),
        asked(net)["answer"],
    )
    expected = engine.score(engine.restore(widened, [problem])[0])
    assert found.log_clean == pytest.approx(expected.log_clean, abs=1e-5)
    assert found.log_corrupted == pytest.approx(expected.log_corrupted, abs=1e-5)
    torch.testing.assert_close(found.log_restored, expected.log_restored, atol=0.2, rtol=0)


def test_a_study_traces_the_answer_where_it_is_predicted(net, generated, checkpoint):
    reader = tokens.read_pretrained(checkpoint, net.config.eos_token_id)
    row = generated[1][0]
    example = tokens.encode(reader, row)
    revealed = [
        [place, reader.decode([example.ids[place]]), 0, 1.0] for place in range(example.prompt, len(example.ids))
    ]
    said = {"correct": True, "ids": example.ids, "prompt_tokens": example.prompt, "revealed": revealed, "withdrawn": []}
    settings = study.Tracing(corruptions={"gaussian": ["state"]}, draws=1)
    *_, traces, _ = study.trace_split(net, reader, [row], [said], settings)
    canvas = example.ids[: example.prompt] + [network.mask_id(net)] * (len(example.ids) - example.prompt)
    logs = naive_logits(net, canvas).log_softmax(-1)
    expected = sum(logs[place, example.ids[place]] for place in range(*example.answer))
    assert traces[0].arrays["log_probability.clean"][0] == pytest.approx(expected.item(), abs=1e-2)


def test_a_question_reads_its_answer_where_it_is_predicted(net, generated, checkpoint):
    reader = tokens.read_pretrained(checkpoint, net.config.eos_token_id)
    row = generated[1][0]
    lm = scoring.LanguageModel(net, reader, 120)
    sequence = scoring.question(lm, row)
    [found], _ = scoring.score_answers(net, [sequence])
    example = tokens.encode(reader, row)
    logs = naive_logits(net, sequence.ids).log_softmax(-1)
    expected = sum(logs[place, example.ids[place]] for place in range(*example.answer))
    assert found.item() == pytest.approx(expected.item(), abs=1e-3)


@pytest.fixture(scope="module")
def checkpoint(name, tmp_path_factory):
    return published(tmp_path_factory.mktemp(name), name)


def test_a_checkpoint_in_shards_becomes_a_model_folder(net, name, checkpoint, tmp_path):
    MODELS[name].convert(tmp_path / "base", folder=checkpoint)
    again, reader = network.load(tmp_path / "base", device="cpu")
    for one, other in zip(again.parameters(), net.parameters(), strict=True):
        assert torch.equal(one, other)
    assert len(reader) == 318 and reader.eos_token_id == again.config.eos_token_id


def test_an_unpinned_repository_is_not_downloaded(name, tmp_path):
    with pytest.raises(ModelError, match="owner/model is unpinned; allowed: its commit and the SHA-256 of its files"):
        MODELS[name].convert(tmp_path, repo="owner/model", revision=hub.UNPINNED, files=hub.UNPINNED)


def test_a_vocabulary_in_files_of_the_older_kind_is_read_too(tmp_path):
    """Dream's repository has vocab.json, merges.txt and added tokens, which transformers' Qwen2 reads."""
    whole = tokens.train_tokenizer(["a few words of a few"], 300)
    whole.backend_tokenizer.model.save(str(tmp_path))
    added = {"<|endoftext|>": len(whole), "<|mask|>": len(whole) + 1}
    told = {str(i): {"content": word, "special": True, "normalized": False} for word, i in added.items()}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": told}))
    found = tokens.read_pretrained(tmp_path, added["<|endoftext|>"])
    assert found("a few words")["input_ids"] == whole("a few words")["input_ids"]
    assert found.eos_token == "<|endoftext|>" and found.convert_tokens_to_ids("<|mask|>") == added["<|mask|>"]
