import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks import naive_trace
from reversal.models import network as networks
from reversal.tracing import engine, llama

GOLDEN = Path(__file__).parent / "golden" / "rome"
WAYS = [("state", None), ("mlp", None), ("attn", None), ("state", "mlp"), ("state", "attn")]


def network(*, causal, layers=3, heads=2, size=4, seed=0, **more):
    net = networks.new(
        causal=causal, vocab=23, width=heads * size, layers=layers, heads=heads, mlp=12, seed=seed, **more
    )
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(8)  # random weights are so small that restoring anything hardly shows
    return net


def question(net, *, tokens=7, subject=(2, 4), places=(4, 6), draws=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(networks.vocab(net), (tokens,), generator=generator)
    if networks.is_diffusion(net):
        ids[list(places)] = networks.mask_id(net)
    wanted = torch.randint(networks.vocab(net), (len(places),), generator=generator).tolist()
    return {
        "input_ids": ids,
        "subject": subject,
        "answer": dict(zip(places, wanted, strict=True)),
        "noise": engine.draw_noise(net, subject, draws, generator=generator),
    }


@st.composite
def cases(draw):
    """A network of either family and a question to it."""
    tokens = draw(st.integers(2, 8))
    first = draw(st.integers(0, tokens - 1))
    net = network(
        causal=draw(st.booleans()),
        layers=draw(st.integers(1, 5)),
        heads=draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 99)),
    )
    asked = question(
        net,
        tokens=tokens,
        subject=(first, draw(st.integers(first + 1, tokens))),
        places=draw(st.lists(st.integers(0, tokens - 1), min_size=1, max_size=3, unique=True)),
        draws=draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 99)),
    )
    return net, asked


def few(examples):
    return settings(max_examples=examples, deadline=None, derandomize=True)


def agree(found, expected):
    clean, corrupted, restored = expected
    torch.testing.assert_close(found.log_restored, restored.double().mean(-1), atol=2e-4, rtol=1e-5)
    torch.testing.assert_close(found.restored, restored.double().exp().mean(-1), atol=1e-5, rtol=1e-4)
    assert found.clean == pytest.approx(clean.exp().item(), abs=1e-5)
    assert found.corrupted == pytest.approx(corrupted.exp().mean().item(), abs=1e-5)
    assert found.log_corrupted == pytest.approx(corrupted.mean().item(), abs=2e-4)


def problem(net, asked, **more):
    ids, subject = asked["input_ids"], asked["subject"]
    corrupted = engine.add_noise(net, ids, subject, asked["noise"])
    return engine.Problem(engine.embed(net, ids), corrupted, asked["answer"], **more)


@pytest.mark.parametrize("by_hooks", [False, True])
@pytest.mark.parametrize("kind", engine.KINDS)
def test_every_restored_probability_is_the_one_that_rome_finds(kind, by_hooks, monkeypatch):
    if by_hooks:
        monkeypatch.setattr(llama, "supports", lambda net: False)
    net, _ = networks.load(GOLDEN / "model", device="cpu")
    known, arrays = json.loads((GOLDEN / "trace.json").read_text()), load_file(GOLDEN / "trace.safetensors")
    ids = arrays["input_ids"][0]
    found = engine.trace(
        net,
        ids,
        subject=known["subject_range"],
        answer={len(ids) - 1: known["answer_token"]},
        noise=arrays["noise"],
        kind=kind,
        window=known["window"],
    )
    torch.testing.assert_close(found.restored.float(), arrays[kind], atol=1e-5, rtol=0)
    assert found.clean == pytest.approx(known["high_score"], abs=1e-5)
    assert found.corrupted == pytest.approx(known["low_score"], abs=1e-5)


@few(40)
@given(cases(), st.sampled_from(WAYS), st.integers(1, 6))
def test_the_batched_trace_equals_one_state_at_a_time(case, way, window):
    net, asked = case
    how = {"kind": way[0], "severed": way[1], "window": window}
    agree(engine.trace(net, **asked, **how), naive_trace.trace(net, **asked, **how))


@few(15)
@given(cases(), st.sampled_from(WAYS), st.integers(1, 4))
def test_the_trace_by_hooks_equals_one_state_at_a_time(case, way, window):
    net, asked = case
    how = {"kind": way[0], "severed": way[1], "window": window}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama, "supports", lambda net: False)
        agree(engine.trace(net, **asked, **how), naive_trace.trace(net, **asked, **how))


@pytest.mark.parametrize(("kind", "severed"), WAYS)
def test_other_causal_networks_are_traced_too(kind, severed):
    torch.manual_seed(0)
    shape = GPT2Config(vocab_size=23, n_embd=8, n_layer=3, n_head=2, n_positions=16, initializer_range=0.5)
    net = GPT2LMHeadModel(shape).eval()
    asked = question(net)
    how = {"kind": kind, "severed": severed, "window": 2}
    agree(engine.trace(net, **asked, **how), naive_trace.trace(net, **asked, **how))


def test_rounded_rope_and_grouped_keys_are_respected():
    net = network(causal=False, heads=4, rounded_rope=True)
    net.model.rotary_emb(torch.zeros(1), torch.arange(2)[None])
    agree(engine.trace(net, **question(net)), naive_trace.trace(net, **question(net)))
    config = network(causal=True, heads=4).config
    config.num_key_value_heads = 2
    torch.manual_seed(0)
    grouped = type(net)(config).eval()
    agree(engine.trace(grouped, **question(grouped)), naive_trace.trace(grouped, **question(grouped)))


@few(25)
@given(cases())
def test_restoring_every_state_of_the_first_layer_gives_the_clean_score(case):
    net, asked = case
    everything = problem(net, asked, groups=[tuple(range(len(asked["input_ids"])))])
    [runs] = engine.restore(net, [everything])
    torch.testing.assert_close(runs.restored[:, 0, 0], runs.clean.expand_as(runs.corrupted), atol=1e-4, rtol=1e-5)


@few(15)
@given(cases(), st.sampled_from(WAYS))
def test_restoring_nothing_gives_the_corrupted_score(case, way):
    net, asked = case
    [runs] = engine.restore(net, [problem(net, asked, groups=[()])], kind=way[0], severed=way[1])
    assert torch.equal(runs.restored[:, 0], runs.corrupted[:, None].expand_as(runs.restored[:, 0]))


@few(15)
@given(cases(), st.sampled_from(WAYS))
def test_without_corruption_nothing_has_an_effect(case, way):
    net, asked = case
    asked["noise"] = torch.zeros_like(asked["noise"])
    found = engine.trace(net, **asked, kind=way[0], severed=way[1])
    assert (found.restored == found.corrupted).all()
    assert found.corrupted == pytest.approx(found.clean, abs=1e-6)


@few(25)
@given(cases(), st.sampled_from(WAYS), st.integers(1, 4))
def test_in_a_causal_network_states_before_the_subject_and_after_the_answer_have_no_effect(case, way, window):
    net, asked = case
    if networks.is_diffusion(net):
        return
    found = engine.trace(net, **asked, kind=way[0], severed=way[1], window=window)
    idle = [p for p in range(len(asked["input_ids"])) if p < asked["subject"][0] or p > max(asked["answer"])]
    assert (found.restored[idle] == found.corrupted).all()
    assert (found.log_restored[idle] == found.log_corrupted).all()


@few(10)
@given(cases())
def test_the_last_state_that_is_read_is_the_clean_prediction(case):
    net, asked = case
    asked["answer"] = dict(list(asked["answer"].items())[:1])
    found = engine.trace(net, **asked)
    assert found.log_restored[next(iter(asked["answer"])), -1].item() == pytest.approx(found.log_clean, abs=1e-4)


@pytest.mark.parametrize("causal", [True, False])
def test_facts_traced_together_are_traced_as_alone(causal):
    net = network(causal=causal)
    asked = [
        question(net, seed=1),
        question(net, seed=2, draws=1, places=(5,)),
        question(net, seed=3, tokens=9, subject=(0, 1), places=(7, 6, 8)),
        question(net, seed=4, subject=(3, 4), places=(6, 5)),
    ]
    together = engine.restore(net, [problem(net, one) for one in asked], kind="mlp", window=2)
    for one, runs in zip(asked, together, strict=True):
        alone = engine.trace(net, **one, kind="mlp", window=2)
        torch.testing.assert_close(engine.score(runs).log_restored, alone.log_restored, atol=1e-5, rtol=1e-5)


def test_one_run_scores_each_answer_token_or_all_of_them():
    net = network(causal=True)
    asked = question(net, places=(4, 6))
    [runs] = engine.restore(net, [problem(net, asked)])
    first = {**asked, "answer": {4: asked["answer"][4]}, "input_ids": asked["input_ids"][:5]}
    alone = engine.trace(net, **first)
    torch.testing.assert_close(engine.score(runs, [0]).log_restored[:5], alone.log_restored, atol=1e-5, rtol=1e-5)
    joint, parts = engine.score(runs), [engine.score(runs, [i]) for i in range(2)]
    assert joint.log_clean == pytest.approx(sum(part.log_clean for part in parts))


@pytest.mark.parametrize("causal", [True, False])
def test_replaced_subjects_run_as_if_they_stood_there(causal):
    net = network(causal=causal)
    asked = question(net)
    ids = asked["input_ids"].clone()
    ids[2:4] = torch.tensor([1, 2])
    corrupted = engine.replace_subject(net, asked["input_ids"], asked["subject"], [1, 2])
    [runs] = engine.restore(net, [engine.Problem(engine.embed(net, asked["input_ids"]), corrupted, asked["answer"])])
    logs = networks.logits(net, networks.hidden(net, ids[None])).log_softmax(-1)[0]
    expected = sum(logs[place, token] for place, token in asked["answer"].items())
    assert engine.score(runs).log_corrupted == pytest.approx(expected.item(), abs=1e-4)


def test_noise_has_the_scale_of_the_real_tokens_embeddings():
    net = network(causal=False)
    with torch.no_grad():
        net.get_input_embeddings().weight[-1] = 1e6  # the mask is no real token
    noise = engine.draw_noise(net, (0, 5), 500, generator=torch.Generator().manual_seed(0), scale=3.0)
    expected = 3 * net.get_input_embeddings().weight[:-1].std().item()
    assert noise.shape == (500, 5, 8)
    assert noise.std().item() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("budget", [1, 20_000])
def test_a_small_budget_changes_nothing(causal, budget, monkeypatch):
    net = network(causal=causal)
    whole = engine.trace(net, **question(net), kind="attn", window=2)
    monkeypatch.setitem(engine.BYTES, "cpu", budget)
    cut = engine.trace(net, **question(net), kind="attn", window=2)
    torch.testing.assert_close(cut.log_restored, whole.log_restored, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_out_of_memory_halves_the_batch_and_gives_the_same_numbers(causal, monkeypatch):
    net = network(causal=causal)
    problems = [problem(net, question(net, seed=seed)) for seed in range(3)]
    whole = engine.restore(net, problems, kind="mlp", window=2)
    ran, mlp = [], llama._mlp

    def scarce(weights, block, x):
        ran.append(len(x))
        if len(x) > 8:
            raise torch.OutOfMemoryError("simulated")
        return mlp(weights, block, x)

    monkeypatch.setattr(llama, "_mlp", scarce)
    halved = engine.restore(net, problems, kind="mlp", window=2)
    assert max(ran) > 8
    for one, other in zip(halved, whole, strict=True):
        torch.testing.assert_close(one.restored, other.restored, atol=1e-5, rtol=1e-5)


def test_memory_that_is_too_short_for_one_run_is_an_error(monkeypatch):
    def never(*_):
        raise torch.OutOfMemoryError("simulated")

    net = network(causal=True)
    monkeypatch.setattr(llama, "_mix", never)
    with pytest.raises(torch.OutOfMemoryError):
        engine.trace(net, **question(net))


@pytest.mark.parametrize("severed", [None, "attn"])
def test_no_hook_outlives_a_trace_however_it_ends(severed, monkeypatch):
    monkeypatch.setattr(llama, "supports", lambda net: False)
    net = network(causal=True)
    logits, calls = networks.logits, []

    def failing(*given):
        calls.append(len(hooks()))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return logits(*given)

    def hooks():
        return [hook for module in net.modules() for hook in module._forward_hooks]

    monkeypatch.setattr(networks, "logits", failing)
    with pytest.raises(KeyboardInterrupt):
        engine.trace(net, **question(net), severed=severed)
    assert calls[-1] > 0 and hooks() == []


def test_the_precision_of_products_is_set_back_however_a_trace_ends(monkeypatch):
    def never(*_):
        raise KeyboardInterrupt

    net, before = network(causal=True), torch.get_float32_matmul_precision()
    monkeypatch.setattr(llama, "_mix", never)
    with pytest.raises(KeyboardInterrupt):
        engine.trace(net, **question(net), precision="tf32")
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # a CPU without bfloat16 says so
@pytest.mark.parametrize("precision", ["tf32", "float16", "bfloat16"])
def test_lower_precision_stays_near(precision):
    net = networks.new(causal=False, vocab=23, width=16, layers=3, heads=2, mlp=32, seed=0)
    exact, rough = (engine.trace(net, **question(net), precision=how) for how in ("float32", precision))
    torch.testing.assert_close(rough.log_restored, exact.log_restored, atol=0.05, rtol=0)
    assert rough.corrupted == exact.corrupted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"subject": (4, 4)}, "subject is 4–4"),
        ({"subject": (5, 8)}, "within the 7"),
        ({"noise": torch.zeros(2, 3, 8)}, r"it is \(draws, 2, 8\)"),
        ({"answer": {}}, "at least one token"),
        ({"answer": {7: 0}}, "position 7"),
        ({"answer": {6: 23}}, "real tokens are 0–22"),
        ({"kind": "head"}, "kind is 'head'"),
        ({"window": 0}, "window is 0"),
        ({"kind": "mlp", "severed": "mlp"}, "with kind state"),
        ({"precision": "int8"}, "precision is 'int8'"),
    ],
)
def test_what_cannot_be_traced_is_told_in_one_line(change, message):
    net = network(causal=False)
    with pytest.raises(ValueError, match=message):
        engine.trace(net, **(question(net) | change))


def test_a_network_in_training_mode_is_refused():
    net = network(causal=False).train()
    with pytest.raises(ValueError, match="eval"):
        engine.trace(net, **question(net))
