"""Autoregressive networks: greedy completion, likelihood, and predictions of the first token."""

import inspect
from typing import NamedTuple

import torch
from transformers import DynamicCache

from ..common import batches
from ..common.errors import UserError
from ..models import network
from . import logits


class Completions(NamedTuple):
    """The new tokens of each prompt, up to and including the end token, and their log-probabilities."""

    tokens: list
    log_probabilities: list


@torch.no_grad()
def complete(net, prompts, *, new_tokens, eos, precision="float32"):
    """Complete `prompts` (lists of ids) greedily, until `eos` (None: never) or for `new_tokens` tokens."""
    if new_tokens < 1:
        raise UserError(f"new_tokens is {new_tokens}; it must be a whole number from 1 up")
    _require_prompts(prompts)
    device = net.get_input_embeddings().weight.device

    def complete_batch(indices):
        return _complete_batch(net, [prompts[i] for i in indices], new_tokens, eos, device)

    with batches.autocast(device, precision):
        rows = batches.run_by_length(complete_batch, [len(prompt) for prompt in prompts], device)
    return Completions([tokens for tokens, _ in rows], [log_probs for _, log_probs in rows])


def _complete_batch(net, prompts, new_tokens, eos, device):
    """(tokens, log-probabilities) for each prompt of one batch; a row leaves the batch when it ends."""
    ids, real = (part.to(device) for part in batches.pad(prompts, 0, left=True))
    is_padded = not real.all()
    position = real.cumsum(1) - 1  # (B, T), −1 in the padding
    takes_position = "position_ids" in inspect.signature(net.base_model.forward).parameters
    cache = DynamicCache(config=net.config)
    unfinished = list(range(len(prompts)))
    rows = [([], []) for _ in prompts]
    for _ in range(new_tokens):
        states = net.base_model(
            input_ids=ids,
            attention_mask=real.long() if is_padded else None,
            past_key_values=cache,
            use_cache=True,
            **({"position_ids": position.clamp(min=0)} if takes_position else {}),
        ).last_hidden_state
        log_prob, token = network.logits(net, states[:, -1]).float().log_softmax(-1).max(-1)
        for row, chosen, value in zip(unfinished, token.tolist(), log_prob.tolist(), strict=True):
            rows[row][0].append(chosen)
            rows[row][1].append(value)
        remaining = (token != (-1 if eos is None else eos)).nonzero()[:, 0]
        if not len(remaining):
            break
        if len(remaining) < len(token):
            cache.batch_select_indices(remaining)
            unfinished = [unfinished[i] for i in remaining.tolist()]
        ids = token[remaining, None]
        real = torch.nn.functional.pad(real[remaining], (0, 1), value=True)
        position = position[remaining, -1:] + 1
    return rows


@torch.no_grad()
def log_likelihood(net, prompts, completions, *, precision="float32"):
    """log p(completion | prompt) (N,), float64, for each pair of lists of ids."""
    _require_prompts(prompts)
    device = net.get_input_embeddings().weight.device
    rows = [[*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)]

    def score(indices):
        ids, real = batches.pad([rows[i] for i in indices], 0)
        starts = torch.tensor([len(prompts[i]) for i in indices])
        scored = real & (torch.arange(ids.shape[1]) >= starts[:, None])
        # Padding follows the row, and a causal network does not attend to later positions.
        states = network.hidden(net, ids.to(device))[:, :-1][scored[:, 1:].to(device)]
        log_probs = logits.token_log_probs(net, states, ids[scored].to(device)).double().cpu()
        return torch.zeros(len(indices), dtype=torch.float64).index_add_(0, scored.nonzero()[:, 0], log_probs)

    with batches.autocast(device, precision):
        values = batches.run_by_length(score, [len(row) for row in rows], device)
    return torch.tensor(values, dtype=torch.float64)


def _require_prompts(prompts):
    """Refuse an empty prompt."""
    for i, prompt in enumerate(prompts):
        if not len(prompt):
            raise UserError(f"prompt {i} is empty; an autoregressive network needs at least one token")
