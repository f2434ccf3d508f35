import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

from reversal.common import batches
from reversal.models import network
from reversal.recall import autoregressive

VOCAB, EOS = 20, 0


def llama():
    return network.new(causal=True, vocab=VOCAB, width=16, layers=2, heads=2, mlp=32, context=64, eos=EOS, seed=0)


def gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=16, n_layer=2, n_head=2))


def neox():
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=VOCAB, max_position_embeddings=64, **shape))


def bloom():
    return BloomForCausalLM(BloomConfig(vocab_size=VOCAB, hidden_size=16, n_layer=2, n_head=2))


FAMILIES = {build.__name__: build for build in (llama, gpt2, neox, bloom)}


@pytest.fixture(scope="module")
def networks():
    return {name: sharpened(build) for name, build in FAMILIES.items()}


def sharpened(build):
    """A network whose predictions are far from uniform, so that rounding decides none."""
    torch.manual_seed(0)
    net = build().eval()
    with torch.no_grad():
        for weight in net.parameters():
            if weight.dim() > 1:
                weight.mul_(8)
    return net


def prompts_of(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, VOCAB, (length,), generator=generator).tolist() for length in lengths]


PROMPTS = prompts_of([3, 7, 1, 5, 5, 9])


@torch.no_grad()
def one_token_at_a_time(net, prompt, new_tokens, eos):
    tokens, logs = [], []
    while len(tokens) < new_tokens and eos not in tokens:
        log = net(torch.tensor([prompt + tokens])).logits[0, -1].log_softmax(-1)
        tokens.append(log.argmax().item())
        logs.append(log.max().item())
    return tokens, logs


@pytest.mark.parametrize("family", FAMILIES)
def test_completions_are_those_of_one_prompt_and_one_token_at_a_time(networks, family):
    found = autoregressive.complete(networks[family], PROMPTS, new_tokens=8, eos=EOS)
    for prompt, tokens, logs in zip(PROMPTS, *found, strict=True):
        expected, expected_logs = one_token_at_a_time(networks[family], prompt, 8, EOS)
        assert tokens == expected
        assert logs == pytest.approx(expected_logs, abs=1e-4)


def test_completions_are_those_of_generate(networks):
    net = networks["llama"]
    found = autoregressive.complete(net, PROMPTS, new_tokens=8, eos=EOS)
    for prompt, tokens in zip(PROMPTS, found.tokens, strict=True):
        expected = net.generate(
            torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=EOS, pad_token_id=EOS
        )
        assert tokens == expected[0, len(prompt) :].tolist()


@settings(max_examples=10, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    new_tokens=st.integers(1, 6),
    eos=st.integers(0, VOCAB - 1),
    rows=st.sampled_from([1, 2, 50]),
)
def test_completions_do_not_depend_on_batches_and_stop_at_the_end_token(networks, lengths, new_tokens, eos, rows):
    prompts = prompts_of(lengths, seed=sum(lengths))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(batches.SIZES, "cpu", rows)
        found = autoregressive.complete(networks["llama"], prompts, new_tokens=new_tokens, eos=eos)
    assert found.tokens == [one_token_at_a_time(networks["llama"], prompt, new_tokens, eos)[0] for prompt in prompts]


def test_no_prompts_give_no_completions(networks):
    assert autoregressive.complete(networks["llama"], [], new_tokens=3, eos=EOS).tokens == []


@pytest.mark.parametrize("family", FAMILIES)
def test_likelihood_is_the_sum_over_the_completion_alone(networks, family):
    net = networks[family]
    answers = prompts_of([2, 1, 4, 0, 3, 2], seed=1)
    found = autoregressive.log_likelihood(net, PROMPTS, answers)
    for prompt, answer, value in zip(PROMPTS, answers, found.tolist(), strict=True):
        with torch.no_grad():
            logs = net(torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
        expected = sum(logs[len(prompt) + i - 1, token].item() for i, token in enumerate(answer))
        assert value == pytest.approx(expected, abs=1e-4)


def test_greedy_log_probabilities_sum_to_the_likelihood_of_the_completion(networks, limit_batches):
    limit_batches(2)
    found = autoregressive.complete(networks["llama"], PROMPTS, new_tokens=5, eos=EOS)
    likelihood = autoregressive.log_likelihood(networks["llama"], PROMPTS, found.tokens)
    assert [sum(logs) for logs in found.log_probabilities] == pytest.approx(likelihood.tolist(), abs=1e-4)


def test_a_batch_too_large_for_the_gpu_is_halved(networks, monkeypatch):
    net = networks["llama"]
    expected = autoregressive.complete(net, PROMPTS, new_tokens=4, eos=EOS)
    forward = net.model.forward

    def small(*, input_ids, **options):
        if len(input_ids) > 2:
            raise torch.OutOfMemoryError("out of memory")
        return forward(input_ids=input_ids, **options)

    small.__signature__ = inspect.signature(forward)
    monkeypatch.setattr(net.model, "forward", small)
    assert autoregressive.complete(net, PROMPTS, new_tokens=4, eos=EOS).tokens == expected.tokens


def test_an_empty_prompt_and_zero_new_tokens_are_refused(networks):
    with pytest.raises(ValueError, match="prompt 1 is empty"):
        autoregressive.complete(networks["llama"], [[1], []], new_tokens=2, eos=EOS)
    with pytest.raises(ValueError, match="new_tokens is 0"):
        autoregressive.complete(networks["llama"], [[1]], new_tokens=0, eos=EOS)
