"""Autoregression: greedy completion and likelihood."""

import inspect
from typing import NamedTuple

import torch
from transformers import DynamicCache

from ..common import batches
from ..common.errors import UserError
from ..models import network
from . import logits


class Completed(NamedTuple):
    """New tokens for each prompt, the end token included where it was reached, and their log-probabilities."""

    tokens: list
    log_probabilities: list


@torch.no_grad()
def complete(net, prompts, *, new_tokens, eos, precision="float32"):
    """Greedy completions of `prompts` (lists of ids), until `eos` (None: never) or for `new_tokens` tokens."""
    if new_tokens < 1:
        raise UserError(f"new_tokens is {new_tokens}; it is a whole number from 1 up")
    _require_prompts(prompts)
    device = net.get_input_embeddings().weight.device

    def continue_(indices):
        return _continue(net, [prompts[i] for i in indices], new_tokens, eos, device)

    with batches.autocast(device, precision):
        rows = batches.run(continue_, [len(prompt) for prompt in prompts], device)
    return Completed([tokens for tokens, _ in rows], [logs for _, logs in rows])


def _continue(net, prompts, new_tokens, eos, device):
    """(tokens, log-probabilities) for each prompt of one batch; rows leave it as they end."""
    ids, real = (part.to(device) for part in batches.pad(prompts, 0, left=True))
    ragged = not real.all()
    position = real.cumsum(1) - 1  # (B, T), −1 in the padding
    takes_position = "position_ids" in inspect.signature(net.base_model.forward).parameters
    cache = DynamicCache(config=net.config)
    open_ = list(range(len(prompts)))
    found = [([], []) for _ in prompts]
    for _ in range(new_tokens):
        states = net.base_model(
            input_ids=ids,
            attention_mask=real.long() if ragged else None,
            past_key_values=cache,
            use_cache=True,
            **({"position_ids": position.clamp(min=0)} if takes_position else {}),
        ).last_hidden_state
        log, token = network.logits(net, states[:, -1]).float().log_softmax(-1).max(-1)
        for row, chosen, value in zip(open_, token.tolist(), log.tolist(), strict=True):
            found[row][0].append(chosen)
            found[row][1].append(value)
        going = (token != (-1 if eos is None else eos)).nonzero()[:, 0]
        if not len(going):
            break
        if len(going) < len(token):
            cache.batch_select_indices(going)
            open_ = [open_[i] for i in going.tolist()]
        ids = token[going, None]
        real = torch.nn.functional.pad(real[going], (0, 1), value=True)
        position = position[going, -1:] + 1
    return found


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
        # Padding comes after the row, where a causal network's earlier states do not see it.
        before = network.hidden(net, ids.to(device))[:, :-1][scored[:, 1:].to(device)]
        each = logits.token_logs(net, before, ids[scored].to(device))
        return torch.zeros(len(indices), dtype=torch.float64).index_add_(0, scored.nonzero()[:, 0], each.double().cpu())

    with batches.autocast(device, precision):
        values = batches.run(score, [len(row) for row in rows], device)
    return torch.tensor(values, dtype=torch.float64)


@torch.no_grad()
def first_token(net, prompts, *, precision="float32"):
    """Log-probabilities (N, V) of the token after each prompt."""
    _require_prompts(prompts)
    device = net.get_input_embeddings().weight.device

    def predict(indices):
        ids, _ = batches.pad([prompts[i] for i in indices], 0)
        last = torch.tensor([len(prompts[i]) for i in indices], device=device) - 1
        states = network.hidden(net, ids.to(device))[torch.arange(len(indices), device=device), last]
        return network.logits(net, states).float().log_softmax(-1).cpu()

    with batches.autocast(device, precision):
        return torch.stack(batches.run(predict, [len(prompt) for prompt in prompts], device))


def _require_prompts(prompts):
    for i, prompt in enumerate(prompts):
        if not len(prompt):
            raise UserError(f"prompt {i} is empty; an autoregressive network needs a token to go on from")
