"""Training objectives: which tokens are noised, and how, and the loss that all objectives share.

The loss is a weighted cross-entropy at chosen positions. A diffusion network sees some tokens noised and predicts the
original ones; an autoregressive network predicts each next token.
"""

from typing import NamedTuple

import torch

from ..models import network, vocabulary
from ..study.resolve import Objective

EPSILON = 1e-3  # the smallest time drawn in training, as in SMDM
SUBJECT, OBJECT, PROMPT = 1, 2, 4  # marks of a token; one of the subject is marked SUBJECT | PROMPT
UNPROTECTED = 8  # marks every token of a row that an objective does not protect


EVERYWHERE = Objective()  # masks on any token, at a rate drawn uniformly


class Targets(NamedTuple):
    """What to feed and what to predict, all (B, T). Positions of weight 0 are not predicted.

    A time-conditioned network also gets `times`, and one that denoises embeddings the `noise` (B, T, D) to add.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor
    times: torch.Tensor | None = None
    noise: torch.Tensor | None = None

    def map(self, function):
        """Apply a function to every field that is not None."""
        return Targets(*(None if field is None else function(field) for field in self))


def mark_tokens(example, *, protected=True):
    """The mark of each token of a `tokens.Example`."""
    marks = [0 if protected else UNPROTECTED] * len(example.ids)
    for mark, (start, end) in ((SUBJECT, example.subject), (OBJECT, example.answer), (PROMPT, (0, example.prompt))):
        for position in range(start, end):
            marks[position] |= mark
    return marks


def stratified_times(rows, *, generator):
    """Times t (B,) in [ε, 1], one in each of B equal strata: each is U(ε, 1), and their mean varies less."""
    start = torch.rand((), generator=generator)
    return EPSILON + (1 - EPSILON) * ((start + torch.arange(rows) / rows) % 1)


def corrupt(ids, t, mask_id, *, generator):
    """Mask each token of `ids` (B, T) independently with probability `t` (B,)."""
    hit = torch.rand(ids.shape, generator=generator) < t[:, None]
    return ids.masked_fill(hit, mask_id), hit


def protect(hit, marks, objective, *, generator):
    """Apply an objective's protection: which tokens are noised and which may be predicted, both (B, T).

    `hit` (B, T) are the tokens that noise would hit, `marks` (B, T) those of the tokens.
    """
    protected = marks & UNPROTECTED == 0
    subject, obj, prompt = (protected & (marks & mark > 0) for mark in (SUBJECT, OBJECT, PROMPT))
    exposed = torch.rand(len(hit), 1, generator=generator) < objective.exposure  # rows in which nothing is protected
    if objective.protect == "subject_given_object":  # where the subject is noised, the object is noised as well
        return hit | (obj & (hit & subject).any(1, keepdim=True) & ~exposed), torch.ones_like(hit)
    free = exposed | ~{"none": torch.zeros_like(hit), "subject": subject, "prompt": prompt}[objective.protect]
    return hit & free, free


def diffusion_targets(ids, net, objective=EVERYWHERE, *, marks=None, generator):
    """Noise `ids` (B, T) by an `Objective`, for a diffusion `net` to predict the original tokens.

    Prompts are noised like the rest, and so is the padding: it consists of end tokens, and a canvas has to end in them.
    `marks` (B, T) are the tokens' marks; without them nothing is protected.
    """
    fixed = objective.rate != "uniform"
    t = torch.full((len(ids),), objective.rate) if fixed else stratified_times(len(ids), generator=generator)
    draws = torch.rand(ids.shape, generator=generator)
    if objective.whole_entities:
        draws = share_draws(draws, marks)
    hit = draws < t[:, None]
    free = torch.ones_like(hit)
    if marks is not None:
        hit, free = protect(hit, marks, objective, generator=generator)
    targets = NOISES[objective.noise](ids, t[:, None], hit, free, net, generator)
    return targets if network.block_size(net) is None else noise_one_block(targets, network.block_size(net), generator)


def share_draws(draws, marks):
    """Give all tokens of a subject, and all of an object, the draw (B, T) of their first one: all are noised or none.

    Each token is still noised at its row's rate. This is the whole-entity masking of DiffER (He et al. 2026).
    """
    for mark in (SUBJECT, OBJECT):
        entity = marks & mark > 0
        draws = torch.where(entity, draws.gather(1, entity.int().argmax(1, keepdim=True)), draws)
    return draws


def noise_one_block(targets, size, generator):
    """Keep the noise of one block of `size` tokens per row, drawn evenly, given clean earlier blocks.

    Its weight is the number of blocks, so that the expected loss is the sum over blocks: the block diffusion bound.
    Later blocks do not matter, since no position attends to them.
    """
    rows, length = targets.targets.shape
    blocks = -(-length // size)
    if blocks == 1:
        return targets
    chosen = torch.randint(blocks, (rows, 1), generator=generator)
    is_chosen = torch.arange(length)[None] // size == chosen
    return targets._replace(
        inputs=torch.where(is_chosen, targets.inputs, targets.targets), weights=targets.weights * is_chosen * blocks
    )


def mask(ids, t, hit, free, net, generator):
    """Replace the tokens that are hit by masks. They are predicted, with weight 1/t over the number of tokens."""
    return Targets(ids.masked_fill(hit, network.mask_id(net)), ids, hit / t / ids.numel())


def uniform(ids, t, hit, free, net, generator):
    """Replace the tokens that are hit by random ones. The input does not show which, so all free ones are predicted."""
    drawn = torch.randint(network.vocab(net), ids.shape, generator=generator)
    times = t.expand(ids.shape) if network.is_time_conditioned(net) else None
    return Targets(torch.where(hit, drawn, ids), ids, free / ids.numel(), times)


def gaussian(ids, t, hit, free, net, generator):
    """Noise the embeddings of the tokens that are hit, at one log-SNR per row; they are predicted as with masks."""
    level = vocabulary.log_snr(stratified_times(len(ids), generator=generator))[:, None]
    noise = torch.randn((*ids.shape, net.config.hidden_size), generator=generator)
    return Targets(ids, ids, hit / t / ids.numel(), torch.where(hit, level, torch.inf), noise)


NOISES = {"mask": mask, "uniform": uniform, "gaussian": gaussian}


def autoregressive_targets(ids, real, objective=EVERYWHERE, *, marks=None, generator=None):
    """Predict each token of `ids` (B, T) that is `real` (B, T) and has one before it, all with the same weight.

    Protected tokens, by their `marks` (B, T), are not predicted.
    """
    following = torch.nn.functional.pad(real[:, 1:], (1, 0)).float()  # (B, T)
    if objective.masked_context:
        return add_masked_context(ids, real, following, objective, generator=generator)
    weights = following / following.sum()
    if marks is not None:
        weights = weights * protect(real, marks, objective, generator=generator)[1]
    return Targets(inputs=ids, targets=ids, weights=weights)


def add_masked_context(ids, real, following, objective, *, generator):
    """Put a masked copy of each row of `ids` (B, T) before it, and predict the row alone: targets (B, 2T).

    This is the masked fine-tuning of Pan et al. (2025), with end tokens for masks, since an autoregressive network has
    no other. A share 1 − `masked_context` of the rows stay as they are, with weights at the tokens that are `following`
    another; what comes after these rows does not matter.
    """
    t = stratified_times(len(ids), generator=generator)
    hit = torch.rand(ids.shape, generator=generator) < t[:, None]
    has_context = torch.rand(len(ids), 1, generator=generator) < objective.masked_context
    is_word = torch.nn.functional.pad(real[:, 1:], (0, 1))  # without the end token, which separates copy and row
    copy = torch.where(has_context & hit & is_word, ids[:, -1:], ids)  # every row is padded with end tokens
    weights = torch.cat([following * ~has_context, real * has_context], 1)
    return Targets(torch.cat([copy, ids], 1), torch.cat([ids, ids], 1), weights / weights.sum())


def compute_loss(net, batch):
    """Σ weight · CE over the positions with a weight; the head runs at those positions only."""
    weighted = batch.weights.flatten().nonzero().squeeze(1)
    device = net.get_input_embeddings().weight.device
    batch = batch.map(lambda field: field.to(device, non_blocking=True))
    states = network.prediction_states(net, batch.inputs, times=batch.times, noise=batch.noise)
    chosen = (field.flatten(0, 1)[weighted.to(device, non_blocking=True)] for field in (states, *batch[1:3]))
    return _weighted_cross_entropy(net, *chosen)


def compute_loss_everywhere(net, batch):
    """The same for a batch on the network's device, with the head at every position: no shape depends on the noise."""
    states = network.prediction_states(net, batch.inputs, times=batch.times, noise=batch.noise)
    return _weighted_cross_entropy(net, states.flatten(0, 1), batch.targets.flatten(), batch.weights.flatten())


def _weighted_cross_entropy(net, states, targets, weights):
    """Σ weight · CE for states (positions, D)."""
    losses = torch.nn.functional.cross_entropy(network.logits(net, states).float(), targets, reduction="none")
    return (losses * weights).sum()
