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
from reversal.tracing.vocabulary import KINDS

GOLDEN = Path(__file__).parent / "golden" / "rome"
PATCHES = [("state", None), ("mlp", None), ("attn", None), ("state", "mlp"), ("state", "attn")]


def make_network(*, causal, layers=3, heads=2, size=4, seed=0, **options):
    net = networks.new(
        causal=causal, vocab=23, width=heads * size, layers=layers, heads=heads, mlp=12, seed=seed, **options
    )
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(8)  # with weights of the usual size, effects are too small to compare
    return net


def make_query(net, *, tokens=7, subject=(2, 4), positions=(4, 6), draws=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(networks.vocab(net), (tokens,), generator=generator)
    if networks.is_diffusion(net):
        ids[list(positions)] = networks.mask_id(net)
    answer_tokens = torch.randint(networks.vocab(net), (len(positions),), generator=generator).tolist()
    return {
        "input_ids": ids,
        "subject": subject,
        "answer": dict(zip(positions, answer_tokens, strict=True)),
        "noise": engine.draw_noise(net, subject, draws, generator=generator),
    }


@st.composite
def cases(draw):
    """A network of either family and the arguments of a trace."""
    tokens = draw(st.integers(2, 8))
    first = draw(st.integers(0, tokens - 1))
    net = make_network(
        causal=draw(st.booleans()),
        layers=draw(st.integers(1, 5)),
        heads=draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 99)),
    )
    query = make_query(
        net,
        tokens=tokens,
        subject=(first, draw(st.integers(first + 1, tokens))),
        positions=draw(st.lists(st.integers(0, tokens - 1), min_size=1, max_size=3, unique=True)),
        draws=draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 99)),
    )
    return net, query


def limit(examples):
    return settings(max_examples=examples, deadline=None, derandomize=True)


def assert_equal_traces(result, expected):
    """A `Trace` equals the joint log-probabilities of `naive_trace.trace`."""
    clean, corrupted, restored = expected
    torch.testing.assert_close(result.log_restored, restored.double().mean(-1), atol=2e-4, rtol=1e-5)
    torch.testing.assert_close(result.restored, restored.double().exp().mean(-1), atol=1e-5, rtol=1e-4)
    assert result.clean == pytest.approx(clean.exp().item(), abs=1e-5)
    assert result.corrupted == pytest.approx(corrupted.exp().mean().item(), abs=1e-5)
    assert result.log_corrupted == pytest.approx(corrupted.mean().item(), abs=2e-4)


def make_problem(net, query, **options):
    ids, subject = query["input_ids"], query["subject"]
    corrupted = engine.add_noise(net, ids, subject, query["noise"])
    return engine.Problem(engine.embed(net, ids), corrupted, query["answer"], **options)


@pytest.mark.parametrize("by_hooks", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_restored_probability_equals_romes(kind, by_hooks, monkeypatch):
    if by_hooks:
        monkeypatch.setattr(llama, "is_supported", lambda net: False)
    net, _ = networks.load(GOLDEN / "model", device="cpu")
    known, arrays = json.loads((GOLDEN / "trace.json").read_text()), load_file(GOLDEN / "trace.safetensors")
    ids = arrays["input_ids"][0]
    result = engine.trace(
        net,
        ids,
        subject=known["subject_range"],
        answer={len(ids) - 1: known["answer_token"]},
        noise=arrays["noise"],
        kind=kind,
        window=known["window"],
    )
    torch.testing.assert_close(result.restored.float(), arrays[kind], atol=1e-5, rtol=0)
    assert result.clean == pytest.approx(known["high_score"], abs=1e-5)
    assert result.corrupted == pytest.approx(known["low_score"], abs=1e-5)


@limit(40)
@given(cases(), st.sampled_from(PATCHES), st.integers(1, 6))
def test_the_batched_trace_equals_one_state_at_a_time(case, patch, window):
    net, query = case
    options = {"kind": patch[0], "severed": patch[1], "window": window}
    assert_equal_traces(engine.trace(net, **query, **options), naive_trace.trace(net, **query, **options))


@limit(15)
@given(cases(), st.sampled_from(PATCHES), st.integers(1, 4))
def test_the_trace_by_hooks_equals_one_state_at_a_time(case, patch, window):
    net, query = case
    options = {"kind": patch[0], "severed": patch[1], "window": window}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(llama, "is_supported", lambda net: False)
        assert_equal_traces(engine.trace(net, **query, **options), naive_trace.trace(net, **query, **options))


@pytest.mark.parametrize(("kind", "severed"), PATCHES)
def test_other_causal_networks_are_traced_too(kind, severed):
    torch.manual_seed(0)
    shape = GPT2Config(vocab_size=23, n_embd=8, n_layer=3, n_head=2, n_positions=16, initializer_range=0.5)
    net = GPT2LMHeadModel(shape).eval()
    query = make_query(net)
    options = {"kind": kind, "severed": severed, "window": 2}
    assert_equal_traces(engine.trace(net, **query, **options), naive_trace.trace(net, **query, **options))


def test_rounded_rope_and_grouped_keys_are_respected():
    net = make_network(causal=False, heads=4, rounded_rope=True)
    net.model.rotary_emb(torch.zeros(1), torch.arange(2)[None])
    assert_equal_traces(engine.trace(net, **make_query(net)), naive_trace.trace(net, **make_query(net)))
    config = make_network(causal=True, heads=4).config
    config.num_key_value_heads = 2
    torch.manual_seed(0)
    grouped = type(net)(config).eval()
    assert_equal_traces(engine.trace(grouped, **make_query(grouped)), naive_trace.trace(grouped, **make_query(grouped)))


@limit(25)
@given(cases())
def test_restoring_every_state_of_the_first_layer_gives_the_clean_score(case):
    net, query = case
    everything = make_problem(net, query, groups=[tuple(range(len(query["input_ids"])))])
    [runs] = engine.restore(net, [everything])
    torch.testing.assert_close(runs.restored[:, 0, 0], runs.clean.expand_as(runs.corrupted), atol=1e-4, rtol=1e-5)


@limit(15)
@given(cases(), st.sampled_from(PATCHES))
def test_restoring_nothing_gives_the_corrupted_score(case, patch):
    net, query = case
    [runs] = engine.restore(net, [make_problem(net, query, groups=[()])], kind=patch[0], severed=patch[1])
    assert torch.equal(runs.restored[:, 0], runs.corrupted[:, None].expand_as(runs.restored[:, 0]))


@limit(15)
@given(cases(), st.sampled_from(PATCHES))
def test_without_corruption_nothing_has_an_effect(case, patch):
    net, query = case
    query["noise"] = torch.zeros_like(query["noise"])
    [runs] = engine.restore(net, [make_problem(net, query)], kind=patch[0], severed=patch[1])
    assert (runs.restored == runs.corrupted[:, None, None]).all()
    result = engine.score_runs(runs)
    assert result.corrupted == pytest.approx(result.clean, abs=1e-6)


@limit(25)
@given(cases(), st.sampled_from(PATCHES), st.integers(1, 4))
def test_in_a_causal_network_states_before_the_subject_and_after_the_answer_have_no_effect(case, patch, window):
    net, query = case
    if networks.is_diffusion(net):
        return
    [runs] = engine.restore(net, [make_problem(net, query)], kind=patch[0], severed=patch[1], window=window)
    idle = [p for p in range(len(query["input_ids"])) if p < query["subject"][0] or p > max(query["answer"])]
    assert (runs.restored[:, idle] == runs.corrupted[:, None, None]).all()


@limit(10)
@given(cases())
def test_the_last_state_that_is_read_is_the_clean_prediction(case):
    net, query = case
    query["answer"] = dict(list(query["answer"].items())[:1])
    result = engine.trace(net, **query)
    assert result.log_restored[next(iter(query["answer"])), -1].item() == pytest.approx(result.log_clean, abs=1e-4)


@pytest.mark.parametrize("causal", [True, False])
def test_facts_traced_together_have_the_same_traces_as_alone(causal):
    net = make_network(causal=causal)
    queries = [
        make_query(net, seed=1),
        make_query(net, seed=2, draws=1, positions=(5,)),
        make_query(net, seed=3, tokens=9, subject=(0, 1), positions=(7, 6, 8)),
        make_query(net, seed=4, subject=(3, 4), positions=(6, 5)),
    ]
    together = engine.restore(net, [make_problem(net, query) for query in queries], kind="mlp", window=2)
    for query, runs in zip(queries, together, strict=True):
        alone = engine.trace(net, **query, kind="mlp", window=2)
        torch.testing.assert_close(engine.score_runs(runs).log_restored, alone.log_restored, atol=1e-5, rtol=1e-5)


def test_noise_has_the_scale_of_the_real_tokens_embeddings():
    net = make_network(causal=False)
    with torch.no_grad():
        net.get_input_embeddings().weight[-1] = 1e6  # the mask does not count as a real token
    noise = engine.draw_noise(net, (0, 5), 500, generator=torch.Generator().manual_seed(0), scale=3.0)
    expected = 3 * net.get_input_embeddings().weight[:-1].std().item()
    assert noise.shape == (500, 5, 8)
    assert noise.std().item() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("budget", [1, 20_000])
def test_a_small_budget_changes_nothing(causal, budget, monkeypatch):
    net = make_network(causal=causal)
    expected = engine.trace(net, **make_query(net), kind="attn", window=2)
    monkeypatch.setitem(engine.BYTES, "cpu", budget)
    small = engine.trace(net, **make_query(net), kind="attn", window=2)
    torch.testing.assert_close(small.log_restored, expected.log_restored, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_out_of_memory_halves_the_batch_and_gives_the_same_numbers(causal, monkeypatch):
    net = make_network(causal=causal)
    problems = [make_problem(net, make_query(net, seed=seed)) for seed in range(3)]
    expected = engine.restore(net, problems, kind="mlp", window=2)
    sizes, run_mlp = [], llama._run_mlp

    def fail_if_large(weights, block, x):
        sizes.append(len(x))
        if len(x) > 8:
            raise torch.OutOfMemoryError("simulated")
        return run_mlp(weights, block, x)

    monkeypatch.setattr(llama, "_run_mlp", fail_if_large)
    halved = engine.restore(net, problems, kind="mlp", window=2)
    assert max(sizes) > 8
    for runs, expected_runs in zip(halved, expected, strict=True):
        torch.testing.assert_close(runs.restored, expected_runs.restored, atol=1e-5, rtol=1e-5)


def test_too_little_memory_for_one_run_is_an_error(monkeypatch):
    def fail(*_):
        raise torch.OutOfMemoryError("simulated")

    net = make_network(causal=True)
    monkeypatch.setattr(llama, "_attend", fail)
    with pytest.raises(torch.OutOfMemoryError):
        engine.trace(net, **make_query(net))


@pytest.mark.parametrize("severed", [None, "attn"])
def test_no_hook_remains_after_a_trace_even_if_it_fails(severed, monkeypatch):
    monkeypatch.setattr(llama, "is_supported", lambda net: False)
    net = make_network(causal=True)
    logits, calls = networks.logits, []

    def fail_at_third_call(*args):
        calls.append(len(list_hooks()))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return logits(*args)

    def list_hooks():
        return [hook for module in net.modules() for hook in module._forward_hooks]

    monkeypatch.setattr(networks, "logits", fail_at_third_call)
    with pytest.raises(KeyboardInterrupt):
        engine.trace(net, **make_query(net), severed=severed)
    assert calls[-1] > 0 and list_hooks() == []


def test_the_matmul_precision_is_reset_after_a_trace_even_if_it_fails(monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    net, before = make_network(causal=True), torch.get_float32_matmul_precision()
    monkeypatch.setattr(llama, "_attend", fail)
    with pytest.raises(KeyboardInterrupt):
        engine.trace(net, **make_query(net), precision="tf32")
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # a CPU without bfloat16 warns
@pytest.mark.parametrize("precision", ["tf32", "float16", "bfloat16"])
def test_lower_precision_gives_nearly_the_same_effects(precision):
    net = networks.new(causal=False, vocab=23, width=16, layers=3, heads=2, mlp=32, seed=0)
    exact, rough = (engine.trace(net, **make_query(net), precision=name) for name in ("float32", precision))
    torch.testing.assert_close(rough.log_restored, exact.log_restored, atol=0.05, rtol=0)
    assert rough.corrupted == exact.corrupted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"subject": (4, 4)}, "subject is 4–4"),
        ({"subject": (5, 8)}, "within the 7"),
        ({"noise": torch.zeros(2, 3, 8)}, r"it needs \(draws, 2, 8\)"),
        ({"answer": {}}, "at least one token"),
        ({"answer": {7: 0}}, "position 7"),
        ({"answer": {6: 23}}, "real tokens are 0–22"),
        ({"kind": "neuron"}, "kind is 'neuron'"),
        ({"kind": "head", "precision": "tf32"}, "float32 for single heads"),
        ({"window": 0}, "window is 0"),
        ({"kind": "mlp", "severed": "mlp"}, "with kind state"),
        ({"precision": "int8"}, "precision is 'int8'"),
    ],
)
def test_invalid_arguments_are_rejected_in_one_line(change, message):
    net = make_network(causal=False)
    with pytest.raises(ValueError, match=message):
        engine.trace(net, **(make_query(net) | change))


def test_a_network_in_training_mode_is_rejected():
    net = make_network(causal=False).train()
    with pytest.raises(ValueError, match="eval"):
        engine.trace(net, **make_query(net))
