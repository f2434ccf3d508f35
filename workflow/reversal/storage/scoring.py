"""Score the answers of prompts: encode rows as sequences, run them in batches, read the answers' log-probabilities.

An autoregressive network predicts the answer token by token. A masked diffusion network sees a whole canvas: the
prompt, the answer masked, and end tokens after it; the answer's probability is the product over its tokens, all
predicted in one pass. If everything after the prompt were masked, the network could put other words before the answer,
and the product would say little about what it knows. A KL prompt is followed by masks only, and the first mask is the
next token. A prefix lengthens the canvas and changes nothing else.

Any score can be computed with values in place of an MLP's output at one position of each sequence, ROME's lookup index:
the last subject token, unless another role of the prompt is chosen.
"""

import dataclasses
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ..common import batches
from ..common.errors import UserError
from ..models import hooks, network, tokens

LAST_SUBJECT = "last subject"
KL_PROMPT = "{} is a"  # ROME's: an optimised value should leave what follows the subject here unchanged
ROWS = {"cpu": 64, "cuda": 256}  # sequences in a batch


class LanguageModel(NamedTuple):
    """A network with its tokenizer."""

    net: Any
    tokenizer: Any
    canvas: int | None = None  # tokens of a diffusion network's canvas


class Sequence(NamedTuple):
    """Tokens to run, with the position of the lookup and the tokens to predict."""

    ids: list
    lookup_position: int  # where a key is read and a value is put
    answer: Mapping  # {position: token predicted there}
    owner: int = 0  # index of the fact that the sequence belongs to


def encode_question(lm: LanguageModel, row, prefix: str = "", *, owner: int = 0, role: str = LAST_SUBJECT) -> Sequence:
    """Encode a prefix and the prompt of a `facts.Row`, with its answer to predict and the lookup at the `role`."""
    net, tokenizer, canvas = lm
    bare, prefixed = tokens.encode(tokenizer, row), tokens.encode(tokenizer, _prepend_prefix(row, prefix))
    first, end = prefixed.answer
    start = len(prefixed.ids) - len(bare.ids)
    lookup = locate_role(role, prefixed.subject, first, start)
    answer = {network.prediction_position(net, position): prefixed.ids[position] for position in range(first, end)}
    if not network.is_diffusion(net):
        return Sequence(prefixed.ids[: end - 1], lookup, answer, owner)
    if len(bare.ids) > canvas:
        raise UserError(
            f"{row.text!r} has {len(bare.ids)} tokens, but the canvas holds {canvas}; "
            f"set the canvas to at least {len(bare.ids)}"
        )
    filled = prefixed.ids + [net.config.eos_token_id] * (canvas - len(bare.ids))
    masked = filled[:first] + [network.mask_id(net)] * (end - first) + filled[end:]
    return Sequence(masked, lookup, answer, owner)


def locate_roles(subject, end, start=0):
    """{role: position} in a prompt that has tokens `start` to `end` and a `subject` (first, past its last).

    A role that the prompt lacks is left out. Where several tokens share a role, it is the last one before the subject,
    and the middle one otherwise.
    """
    first, after = subject
    positions = {
        "prior prompt": first - 1,
        "first subject": first,
        "middle subject": (first + after - 1) // 2,
        LAST_SUBJECT: after - 1,
        "first subsequent": after,
        "further prompt": (after + end) // 2,
        "last prompt": end - 1,
    }
    exists = {
        "prior prompt": first > start,
        "first subject": after - first > 1,
        "middle subject": after - first > 2,
        LAST_SUBJECT: True,
        "first subsequent": after < end - 1,
        "further prompt": after < end - 2,
        "last prompt": after < end,
    }
    return {role: position for role, position in positions.items() if exists[role]}


def locate_role(role, subject, end, start=0):
    """The position of a role as in `locate_roles`, or of the last subject token if the prompt lacks the role."""
    positions = locate_roles(subject, end, start)
    return positions.get(role, positions[LAST_SUBJECT])


def encode_kl_prompt(lm: LanguageModel, subject: str, *, owner: int = 0, role: str = LAST_SUBJECT) -> Sequence:
    """Encode KL_PROMPT about a subject; only the distribution of the next token matters, so its token is 0."""
    net, tokenizer, canvas = lm
    text = KL_PROMPT.format(subject)
    encoded = tokenizer(text, return_offsets_mapping=True)
    ids = encoded["input_ids"]
    subject_tokens = tokens.token_range(text, encoded["offset_mapping"], (0, len(subject)))
    lookup = locate_role(role, subject_tokens, len(ids))
    answer = {network.prediction_position(net, len(ids)): 0}
    if not network.is_diffusion(net):
        return Sequence(ids, lookup, answer, owner)
    masks = canvas - len(ids)
    if masks < 1:
        raise UserError(
            f"{text!r} has {len(ids)} tokens, but the canvas holds {canvas}, with no room for the next token; "
            f"set the canvas to at least {len(ids) + 1}"
        )
    return Sequence(ids + [network.mask_id(net)] * masks, lookup, answer, owner)


def unmask_part(sequence, rng):
    """Put some of the answer's tokens, not all, in place of their masks; the others remain to be predicted."""
    positions = sorted(sequence.answer)
    unmasked = rng.sample(positions, rng.randint(1, len(positions) - 1))
    ids = list(sequence.ids)
    for position in unmasked:
        ids[position] = sequence.answer[position]
    masked = {position: sequence.answer[position] for position in positions if position not in unmasked}
    return sequence._replace(ids=ids, answer=masked)


def _prepend_prefix(row, prefix):
    if not prefix:
        return row
    start, end = row.subject
    shift = len(prefix) + 1
    return dataclasses.replace(row, prompt=f"{prefix} {row.prompt}", subject=(start + shift, end + shift))


@dataclass(frozen=True, eq=False)
class Batch:
    """B sequences with P predictions; a causal network's are padded on the right, which no earlier state sees."""

    ids: torch.Tensor  # (B, T)
    number: torch.Tensor  # (B,) index among all sequences
    owner: torch.Tensor  # (B,)
    lookup_position: torch.Tensor  # (B,)
    row: torch.Tensor  # (P,) sequence of each prediction
    position: torch.Tensor  # (P,)
    token: torch.Tensor  # (P,)
    layer_inputs: Mapping = field(default_factory=dict)  # {layer: (B, T, d)}, as cached by `compute_v.prepare_batches`
    reference: torch.Tensor | None = None  # (P, V) log-probabilities of the unchanged network

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        """The sequences of a slice."""
        keep = torch.zeros(len(self), dtype=torch.bool, device=self.ids.device)
        keep[index] = True
        return self.select(keep)

    def select(self, keep):
        """The sequences for which `keep` (B,) is true."""
        if keep.all():
            return self
        predicted = keep[self.row]
        return Batch(
            *(column[keep] for column in (self.ids, self.number, self.owner, self.lookup_position)),
            row=(keep.cumsum(0) - 1)[self.row[predicted]],
            position=self.position[predicted],
            token=self.token[predicted],
            layer_inputs={layer: states[keep] for layer, states in self.layer_inputs.items()},
            reference=None if self.reference is None else self.reference[predicted],
        )


def collate(net, sequences):
    """`Batch`es of sequences of similar length; of equal length for a diffusion network, which would see padding."""
    device = device_of(net)
    size = ROWS.get(device.type, ROWS["cuda"])
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i].ids))
    groups = []
    for i in order:
        has_room = groups and len(groups[-1]) < size
        if has_room and (not network.is_diffusion(net) or len(sequences[groups[-1][0]].ids) == len(sequences[i].ids)):
            groups[-1].append(i)
        else:
            groups.append([i])
    collated = []
    for group in groups:
        members = [sequences[i] for i in group]
        longest = len(members[-1].ids)
        columns = (
            [sequence.ids + [0] * (longest - len(sequence.ids)) for sequence in members],
            group,
            [sequence.owner for sequence in members],
            [sequence.lookup_position for sequence in members],
            [row for row, sequence in enumerate(members) for _ in sequence.answer],
            [position for sequence in members for position in sequence.answer],
            [token for sequence in members for token in sequence.answer.values()],
        )
        collated.append(Batch(*(torch.tensor(column, dtype=torch.long, device=device) for column in columns)))
    return collated


def log_probabilities(net, batch, *, layer=None, values=None):
    """Log-probabilities (P, V) at each prediction.

    With `values` (n, width), the MLP of `layer` puts out each sequence's `values[owner]` at the lookup position.
    """
    with nullcontext() if values is None else _overwrite_mlp(net, layer, batch, values[batch.owner]):
        states = network.hidden(net, batch.ids)
    return network.logits(net, states[batch.row, batch.position]).float().log_softmax(-1)


@contextmanager
def _overwrite_mlp(net, layer, batch, values):
    """Make the MLP of `layer` put out `values` (B, width) at the lookup positions of `batch`.

    Blocks below the layer are skipped if the batch holds the layer's inputs.
    """
    blocks = network.layers(net)
    rows = torch.arange(len(batch), device=batch.ids.device)
    is_cached = layer in batch.layer_inputs
    with (
        hooks.attach([(network.mlp(blocks[layer]), hooks.overwrite(rows, batch.lookup_position, values))]),
        hooks.skip_blocks(blocks[:layer], batch.layer_inputs[layer]) if is_cached else nullcontext(),
    ):
        yield


def joint_log_probability(batch, log_p):
    """The joint log-probability (B,) of each sequence's answer, from `log_probabilities` (P, V)."""
    token_log_p = log_p.gather(1, batch.token[:, None])[:, 0]
    return torch.zeros(len(batch), device=log_p.device).index_add(0, batch.row, token_log_p)


def answer_loss(net, collated):
    """The mean loss of the answers of all `Batch`es, in nats per token."""
    total = sum(joint_log_probability(batch, log_probabilities(net, batch)).sum() for batch in collated)
    return -total / max(1, sum(len(batch.token) for batch in collated))


def answer_log_odds(net, collated):
    """The mean log-odds of the answers' tokens in all `Batch`es: how far each is ahead of all other tokens, in nats."""
    total = 0
    for batch in collated:
        log_p = log_probabilities(net, batch)
        others = log_p.scatter(1, batch.token[:, None], -torch.inf).logsumexp(1)
        total += (log_p.gather(1, batch.token[:, None])[:, 0] - others).sum()
    return total / max(1, sum(len(batch.token) for batch in collated))


@torch.no_grad()
def score_answers(net, sequences, *, layer=None, values=None):
    """The joint log-probability (N,) of each answer, and whether each of its tokens is the most probable one (N,).

    `layer` and `values` are as in `log_probabilities`. If all tokens are the most probable ones, greedy decoding, or
    sampling in one step, gives the answer.
    """
    joint, exact = torch.zeros(len(sequences)), torch.zeros(len(sequences), dtype=torch.bool)

    def score(batch):
        log_p = log_probabilities(net, batch, layer=layer, values=values)
        return batch.number.cpu(), joint_log_probability(batch, log_p).cpu(), _is_exact(batch, log_p.argmax(-1)).cpu()

    for number, batch_joint, batch_exact in batches.run_pieces(score, collate(net, sequences)):
        joint[number], exact[number] = batch_joint, batch_exact
    return joint, exact


@torch.no_grad()
def generates_answer(net, sequences):
    """Whether the network generates each answer (N,) one token at a time, given the tokens that it generated before.

    An autoregressive network goes from left to right. A masked diffusion network unmasks, in each step, the most
    confident of the answer's masks; `score_answers` predicts all masks at once.
    """
    if not network.is_diffusion(net):
        return score_answers(net, sequences)[1]
    exact = torch.zeros(len(sequences), dtype=torch.bool)

    def generate(batch):
        ids = batch.ids.clone()
        masked = torch.ones_like(batch.token, dtype=torch.bool)
        generated = torch.full_like(batch.token, -1)
        while masked.any():
            confidence, token = log_probabilities(net, dataclasses.replace(batch, ids=ids)).max(-1)
            confidence = confidence.masked_fill(~masked, -torch.inf)
            highest = confidence.new_full((len(batch),), -torch.inf).scatter_reduce(0, batch.row, confidence, "amax")
            unmasked = masked & (confidence == highest[batch.row])
            generated = torch.where(unmasked, token, generated)
            ids[batch.row[unmasked], batch.position[unmasked]] = token[unmasked]
            masked &= ~unmasked
        return batch.number.cpu(), _is_exact(batch, generated).cpu()

    for number, batch_exact in batches.run_pieces(generate, collate(net, sequences)):
        exact[number] = batch_exact
    return exact


def _is_exact(batch, predicted):
    """Whether all tokens `predicted` (P,) of a sequence are those of its answer: (B,)."""
    errors = torch.zeros_like(batch.owner).index_add_(0, batch.row, (predicted != batch.token).long())
    return errors == 0


def mean_by_owner(values, sequences):
    """The mean (n, ...) of `values` (N, ...) over the sequences of each owner."""
    owner = torch.tensor([sequence.owner for sequence in sequences], device=values.device)
    count = torch.bincount(owner)
    total = values.new_zeros(len(count), *values.shape[1:]).index_add(0, owner, values)
    return total / count.view(-1, *[1] * (values.dim() - 1))


def device_of(net):
    """The device of the network's input embeddings."""
    return net.get_input_embeddings().weight.device
