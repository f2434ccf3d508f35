"""Texts that a network samples, to put before its questions: what holds for a fact should hold after any of them."""

import torch

from ..common.errors import UserError
from ..data.facts import one_per_fact
from ..models import network
from .scoring import device_of, question, score_answers

PATIENCE = 20  # samples of a prefix for each that is wanted
TRIED_ON = 20  # facts


def prefixes_like(lm, rows, *, count, lengths, seed, tolerance):
    """Up to `count` prefixes as from `sample_prefixes`, which begin as `rows` do that do not begin with a subject.

    Only those that the network bears: a search after one that makes it forget would mend the prefix, not find a value.
    """
    starts = sorted({lm.tokenizer(row.prompt)["input_ids"][0] for row in rows if row.subject[0]})
    generator = torch.Generator().manual_seed(seed)
    texts = sample_prefixes(lm, count=count, lengths=lengths, generator=generator, starts=starts)
    return accepted_prefixes(lm, one_per_fact(rows, TRIED_ON), texts, tolerance=tolerance)


def accepted_prefixes(lm, rows, prefixes, *, tolerance):
    """Those `prefixes` after which the answers of `rows` are at most `tolerance` nats less likely, on average; and ""."""
    asked = {prefix: [question(lm, row, prefix) for row in rows] for prefix in ("", *prefixes)}
    likely = {prefix: score_answers(lm.net, some)[0].mean() for prefix, some in asked.items()}
    return [prefix for prefix in prefixes if likely[""] - likely[prefix] <= tolerance]


@torch.no_grad()
def sample_prefixes(lm, *, count, lengths, generator, starts=()):
    """`count` distinct texts to put before a question: the empty one, and texts that the network samples.

    They have `lengths` tokens, taken in turn. The first is drawn from `starts` (ids); without them an autoregressive
    network goes on from the end token, and a diffusion network samples the first token too. It unmasks the beginning of
    its canvas in random order. A network that was trained on single sentences still answers after a word or two, not
    after more: look at nll before and after.
    """
    net, tokenizer, canvas = lm
    texts = [""]
    for i in range(PATIENCE * count):
        length = lengths[i % len(lengths)]
        first = [starts[torch.randint(len(starts), (), generator=generator)]] if len(starts) else []
        if network.is_diffusion(net):
            ids = _unmask(net, first, length, canvas, generator)
        else:
            ids = _continue(net, first, length, generator)
        texts = list(dict.fromkeys([*texts, tokenizer.decode(ids).strip()]))
        if len(texts) >= count:
            return texts[:count]
    raise UserError(f"prefixes: {PATIENCE * count} samples of {list(lengths)} tokens gave only {len(texts)} texts")


def _continue(net, first, length, generator):
    ids = [*first] or [net.config.eos_token_id]
    while len(ids) < length + (not first):
        ids.append(_draw(net, ids, len(ids), generator))
    return ids if first else ids[1:]


def _unmask(net, first, length, canvas, generator):
    ids = first + [network.mask_id(net)] * (canvas - len(first))
    for place in torch.randperm(length - len(first), generator=generator).tolist():
        ids[len(first) + place] = _draw(net, ids, len(first) + place, generator)
    return ids[:length]


def _draw(net, ids, position, generator):
    """A token for a `position`, which may be the one after the last of `ids`."""
    states = network.hidden(net, torch.tensor([ids], device=device_of(net)))[0, network.read_at(net, position)]
    logits = network.logits(net, states).float()
    logits[net.config.eos_token_id] = -torch.inf
    return torch.multinomial(logits.softmax(-1).cpu(), 1, generator=generator).item()
