"""Sample texts to put before prompts, as ROME does: a key or value of a fact should not depend on the context.

The network samples the texts itself. A prefix after which it forgets its answers is rejected: a value optimised after
it would make up for the prefix instead of saying where the fact is.
"""

import torch

from ..common.errors import UserError
from ..data.facts import select_first_rows
from ..models import network
from .scoring import device_of, encode_question, score_answers

ATTEMPTS = 20  # samples per prefix, before giving up on texts that are all different
VALIDATION_FACTS = 20  # facts on which prefixes are tried


def choose_prefixes(lm, rows, *, count, lengths, seed, tolerance):
    """Sample `count` prefixes, the empty one included, and return those that `accept_prefixes` keeps.

    They start with the first tokens of those `rows` that do not start with their subject.
    """
    starts = sorted({lm.tokenizer(row.prompt)["input_ids"][0] for row in rows if row.subject[0]})
    generator = torch.Generator().manual_seed(seed)
    texts = sample_prefixes(lm, count=count, lengths=lengths, generator=generator, starts=starts)
    return accept_prefixes(lm, select_first_rows(rows, VALIDATION_FACTS), texts, tolerance=tolerance)


def accept_prefixes(lm, rows, prefixes, *, tolerance):
    """Keep the prefixes that lower the mean log-probability of the answers of `rows` by at most `tolerance` nats."""
    questions = {prefix: [encode_question(lm, row, prefix) for row in rows] for prefix in ("", *prefixes)}
    log_p = {prefix: score_answers(lm.net, sequences)[0].mean() for prefix, sequences in questions.items()}
    return [prefix for prefix in prefixes if log_p[""] - log_p[prefix] <= tolerance]


@torch.no_grad()
def sample_prefixes(lm, *, count, lengths, generator, starts=()):
    """The empty text and `count` − 1 texts that the network samples, all different.

    Their numbers of tokens cycle through `lengths`. The first token is drawn from `starts` (ids). Without `starts`, an
    autoregressive network continues the end token, and a diffusion network samples the first token like the others: it
    unmasks the beginning of its canvas in random order. A network that was trained on single sentences answers after
    one or two words, but not after more.
    """
    net, tokenizer, canvas = lm
    texts = [""]
    for i in range(ATTEMPTS * count):
        length = lengths[i % len(lengths)]
        first = [starts[torch.randint(len(starts), (), generator=generator)]] if len(starts) else []
        if network.is_diffusion(net):
            ids = _sample_by_unmasking(net, first, length, canvas, generator)
        else:
            ids = _sample_left_to_right(net, first, length, generator)
        texts = list(dict.fromkeys([*texts, tokenizer.decode(ids).strip()]))
        if len(texts) >= count:
            return texts[:count]
    raise UserError(
        f"prefixes.count is {count}, but {ATTEMPTS * count} samples of {list(lengths)} tokens gave only {len(texts)} "
        "texts; lower prefixes.count or raise prefixes.lengths"
    )


def _sample_left_to_right(net, first, length, generator):
    ids = [*first] or [net.config.eos_token_id]
    while len(ids) < length + (not first):
        ids.append(_sample_token(net, ids, len(ids), generator))
    return ids if first else ids[1:]


def _sample_by_unmasking(net, first, length, canvas, generator):
    ids = first + [network.mask_id(net)] * (canvas - len(first))
    for offset in torch.randperm(length - len(first), generator=generator).tolist():
        position = len(first) + offset
        ids[position] = _sample_token(net, ids, position, generator)
    return ids[:length]


def _sample_token(net, ids, position, generator):
    """Sample a token for a `position`, which may be the one after the last of `ids`; never the end token."""
    hidden = network.hidden(net, torch.tensor([ids], device=device_of(net)))[0]
    logits = network.logits(net, hidden[network.prediction_position(net, position)]).float()
    logits[net.config.eos_token_id] = -torch.inf
    return torch.multinomial(logits.softmax(-1).cpu(), 1, generator=generator).item()
