"""Asking networks about rows: sequences and what they predict, in batches, with values put in place of what MLPs say.

An autoregressive network is given the answer token by token. A masked diffusion network sees a whole canvas: the row
with its answer masked, end tokens after it; the answer's probability is the product over its tokens, predicted at once.
If all after the question were masked, the network could not know where an answer begins that it may well introduce
with words of its own, and the product would say little about what it knows. After a subject alone, or "{subject} is a",
all is masked, and the first mask stands for the next token. A prefix makes the canvas longer and changes nothing else.
"""

import dataclasses
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ..common import batches
from ..common.errors import UserError
from ..models import hooks, network, spelling, tokens

LAST = "last subject"
ROWS = {"cpu": 64, "cuda": 256}  # sequences at a time


class LanguageModel(NamedTuple):
    """A network, and how text is put before it."""

    net: Any
    tokenizer: Any
    canvas: int | None = None  # tokens of a diffusion network's canvas


class Sequence(NamedTuple):
    """Tokens to run, where the subject ends, and what is predicted."""

    ids: list
    place: int  # where a key is read and a value put: of the last subject token, unless asked for another
    answer: Mapping  # {position: token predicted there}
    owner: int = 0  # the number of the fact that the sequence is about


def question(lm, row, prefix="", *, owner=0, role=LAST):
    """The `Sequence` that asks for the answer of a `facts.Row`, after a prefix; its place has the `role`."""
    net, tokenizer, canvas = lm
    bare, whole = tokens.encode(tokenizer, row), tokens.encode(tokenizer, _prefixed(row, prefix))
    first, end = whole.answer
    start = len(whole.ids) - len(bare.ids)
    place = place_of(role, whole.subject, first, start)
    answer = {network.read_at(net, at): whole.ids[at] for at in range(first, end)}
    if not network.is_diffusion(net):
        return Sequence(whole.ids[: end - 1], place, answer, owner)
    if len(bare.ids) > canvas:
        raise UserError(f"{row.text!r} has {len(bare.ids)} tokens; the canvas holds {canvas}")
    filled = whole.ids + [net.config.eos_token_id] * (canvas - len(bare.ids))
    masked = filled[:first] + [network.mask_id(net)] * (end - first) + filled[end:]
    return Sequence(masked, place, answer, owner)


def places_of(subject, end, start=0):
    """{role: place} of the tokens from `start` to `end` of a prompt about a `subject` (first, past its last).

    One token for each of tracing's roles that there is: of several that are alike, the last one before the subject and
    the middle one otherwise.
    """
    first, after = subject
    found = {
        "prior prompt": first - 1,
        "first subject": first,
        "middle subject": (first + after - 1) // 2,
        LAST: after - 1,
        "first subsequent": after,
        "further prompt": (after + end) // 2,
        "last prompt": end - 1,
    }
    within = {
        "prior prompt": first > start,
        "first subject": after - first > 1,
        "middle subject": after - first > 2,
        LAST: True,
        "first subsequent": after < end - 1,
        "further prompt": after < end - 2,
        "last prompt": after < end,
    }
    return {role: place for role, place in found.items() if within[role]}


def place_of(role, subject, end, start=0):
    """The place of a role, or that of the last subject token where no token has it: `places_of`."""
    places = places_of(subject, end, start)
    return places.get(role, places[LAST])


def phrase(lm, subject, ending="", *, owner=0, role=LAST):
    """The `Sequence` of a subject before an ending; what comes next is predicted, whatever it is."""
    net, tokenizer, canvas = lm
    coded = tokenizer(subject + ending, return_offsets_mapping=True)
    ids, span = coded["input_ids"], (0, len(subject))
    place = place_of(role, spelling.token_range(subject + ending, coded["offset_mapping"], span), len(ids))
    following = {network.read_at(net, len(ids)): 0}
    if not network.is_diffusion(net):
        return Sequence(ids, place, following, owner)
    masks = canvas - len(ids)
    if masks < 1:
        raise UserError(f"{subject + ending!r} fills all {canvas} tokens of the canvas; there is no room after it")
    return Sequence(ids + [network.mask_id(net)] * masks, place, following, owner)


def partly_unmasked(sequence, rng):
    """A masked diffusion network's question with some of its answer's tokens, not all, in their places already."""
    positions = sorted(sequence.answer)
    shown = rng.sample(positions, rng.randint(1, len(positions) - 1))
    ids = list(sequence.ids)
    for position in shown:
        ids[position] = sequence.answer[position]
    return sequence._replace(ids=ids, answer={at: sequence.answer[at] for at in positions if at not in shown})


def _prefixed(row, prefix):
    if not prefix:
        return row
    start, end = row.subject
    shift = len(prefix) + 1
    return dataclasses.replace(row, prompt=f"{prefix} {row.prompt}", subject=(start + shift, end + shift))


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences side by side; causal networks' are padded on the right, where no earlier state sees it."""

    ids: torch.Tensor  # (B, T)
    number: torch.Tensor  # (B,) among the sequences
    owner: torch.Tensor  # (B,)
    place: torch.Tensor  # (B,)
    row: torch.Tensor  # (P,) of each prediction
    position: torch.Tensor  # (P,)
    token: torch.Tensor  # (P,)
    below: Mapping = field(default_factory=dict)  # {layer: what the block under it puts out}
    reference: torch.Tensor | None = None  # (P, V) log-probabilities when nothing is overwritten

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, some):
        """The sequences of a slice."""
        keep = torch.zeros(len(self), dtype=torch.bool, device=self.ids.device)
        keep[some] = True
        return self.where(keep)

    def where(self, keep):
        """The sequences for which `keep` (B,) is true."""
        if keep.all():
            return self
        predicted = keep[self.row]
        return Batch(
            *(column[keep] for column in (self.ids, self.number, self.owner, self.place)),
            row=(keep.cumsum(0) - 1)[self.row[predicted]],
            position=self.position[predicted],
            token=self.token[predicted],
            below={layer: output[keep] for layer, output in self.below.items()},
            reference=None if self.reference is None else self.reference[predicted],
        )


def collate(net, sequences):
    """`Batch`es of sequences alike in length: of one length for a diffusion network, which would see padding."""
    device = device_of(net)
    size = ROWS.get(device.type, ROWS["cuda"])
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i].ids))
    groups = []
    for i in order:
        room = groups and len(groups[-1]) < size
        if room and (not network.is_diffusion(net) or len(sequences[groups[-1][0]].ids) == len(sequences[i].ids)):
            groups[-1].append(i)
        else:
            groups.append([i])
    collated = []
    for group in groups:
        some = [sequences[i] for i in group]
        longest = len(some[-1].ids)
        columns = (
            [sequence.ids + [0] * (longest - len(sequence.ids)) for sequence in some],
            group,
            [sequence.owner for sequence in some],
            [sequence.place for sequence in some],
            [row for row, sequence in enumerate(some) for _ in sequence.answer],
            [position for sequence in some for position in sequence.answer],
            [token for sequence in some for token in sequence.answer.values()],
        )
        collated.append(Batch(*(torch.tensor(column, dtype=torch.long, device=device) for column in columns)))
    return collated


def log_probabilities(net, batch, *, layer=None, values=None):
    """Log-probabilities (P, V) at each prediction; with `values` (n, width), each sequence has its owner's in place."""
    with nullcontext() if values is None else _overwritten(net, layer, batch, values[batch.owner]):
        states = network.hidden(net, batch.ids)
    return network.logits(net, states[batch.row, batch.position]).float().log_softmax(-1)


@contextmanager
def _overwritten(net, layer, batch, values):
    """While it lasts, the MLP of `layer` puts out `values` (B, width) at the places of `batch`.

    Where the batch knows what lies below the layer, the blocks down there do not run.
    """
    blocks = network.layers(net)
    rows = torch.arange(len(batch), device=batch.ids.device)
    known = layer in batch.below
    with (
        hooks.attached([(network.mlp(blocks[layer]), hooks.overwrite(rows, batch.place, values))]),
        hooks.skipped(blocks[:layer], batch.below[layer]) if known else nullcontext(),
    ):
        yield


def joint(batch, logs):
    """The log-probability (B,) of each sequence's answer, all tokens together, from `log_probabilities`."""
    each = logs.gather(1, batch.token[:, None])[:, 0]
    return torch.zeros(len(batch), device=logs.device).index_add(0, batch.row, each)


def answer_loss(net, collated):
    """The loss of all answers of some `Batch`es together, in nats a token."""
    told = sum(joint(batch, log_probabilities(net, batch)).sum() for batch in collated)
    return -told / max(1, sum(len(batch.token) for batch in collated))


@torch.no_grad()
def score_answers(net, sequences, *, layer=None, values=None):
    """The joint log-probability (N,) of each answer, and whether all its tokens are the most probable ones (N,).

    With `values` (n, width), each sequence has its owner's in place of the MLP's output at `layer`. An answer whose
    tokens are all most probable is what greedy decoding, or sampling in one step, would give.
    """
    logs, exact = torch.zeros(len(sequences)), torch.zeros(len(sequences), dtype=torch.bool)

    def score(batch):
        found = log_probabilities(net, batch, layer=layer, values=values)
        wrong = torch.zeros_like(batch.owner).index_add_(0, batch.row, (found.argmax(-1) != batch.token).long())
        return batch.number.cpu(), joint(batch, found).cpu(), (wrong == 0).cpu()

    for number, log, right in batches.each(score, collate(net, sequences)):
        logs[number], exact[number] = log, right
    return logs, exact


@torch.no_grad()
def told(net, sequences):
    """Whether each answer is what the network says token by token (N,), when it may see those it said before.

    An autoregressive network goes from left to right. A masked diffusion network reveals, of the answer's masks, the
    one that it is surest of; its `score_answers` are of all masks at once.
    """
    if not network.is_diffusion(net):
        return score_answers(net, sequences)[1]
    right = torch.zeros(len(sequences), dtype=torch.bool)

    def reveal(batch):
        ids = batch.ids.clone()
        hidden = torch.ones_like(batch.token, dtype=torch.bool)
        said = torch.full_like(batch.token, -1)
        while hidden.any():
            sure, token = log_probabilities(net, dataclasses.replace(batch, ids=ids)).max(-1)
            sure = sure.masked_fill(~hidden, -torch.inf)
            best = sure.new_full((len(batch),), -torch.inf).scatter_reduce(0, batch.row, sure, "amax")
            now = hidden & (sure == best[batch.row])
            said = torch.where(now, token, said)
            ids[batch.row[now], batch.position[now]] = token[now]
            hidden &= ~now
        wrong = torch.zeros_like(batch.owner).index_add_(0, batch.row, (said != batch.token).long())
        return batch.number.cpu(), (wrong == 0).cpu()

    for number, found in batches.each(reveal, collate(net, sequences)):
        right[number] = found
    return right


def mean_by_owner(values, sequences):
    """The mean (n, ...) of `values` (N, ...) over the sequences of each owner."""
    owner = torch.tensor([sequence.owner for sequence in sequences], device=values.device)
    count = torch.bincount(owner)
    total = values.new_zeros(len(count), *values.shape[1:]).index_add(0, owner, values)
    return total / count.view(-1, *[1] * (values.dim() - 1))


def device_of(net):
    """Where the network's tensors are."""
    return net.get_input_embeddings().weight.device
