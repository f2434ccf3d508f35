"""What a network learns to predict: which tokens are noised, and how; and the loss that all objectives share.

The loss is cross-entropy at chosen, weighted positions. A diffusion network sees some tokens noised and predicts what
they were; an autoregressive one predicts each next token.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..models import network, noises

EPSILON = 1e-3  # the least time drawn in training, as in SMDM
SUBJECT, OBJECT, PROMPT = 1, 2, 4  # marks of a token; one of the subject is marked SUBJECT | PROMPT


@dataclass(frozen=True)
class Objective:
    """What is noised in training, and how: the names and meanings of `objective` in the configuration."""

    noise: str = "mask"  # "mask": a mask in its place; "uniform": any token; "gaussian": noise on its embedding
    rate: float | str = "uniform"  # the share of tokens that are noised: drawn evenly for each row, or a number
    # tokens that are never noised, or, autoregressively, never predicted: "none", the "subject", the "prompt", or,
    # "subject_given_object", the subject while the object is in sight
    protect: str = "none"
    people: float | str = "all"  # whose tokens are protected: "all", a share of them, or "control": the control people
    exposure: float = 0.0  # in this share of a row's visits, nothing is protected after all
    time_conditioning: str = "none"  # "embedded": the network is told how much is noised


EVERYWHERE = Objective()  # masks, at a rate drawn evenly, on any token


class Targets(NamedTuple):
    """What to feed and what to predict, all (B, T). Positions of weight 0 are not predicted at all.

    A network that is told the time gets `times`, and one that denoises embeddings the `noise` (B, T, D) to be added.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor
    times: torch.Tensor | None = None
    noise: torch.Tensor | None = None

    def each(self, change):
        """The same with every field that is there changed by a function."""
        return Targets(*(None if field is None else change(field) for field in self))


def marks(example):
    """The mark of each token of a `tokens.Example`."""
    found = [0] * len(example.ids)
    for mark, (start, end) in ((SUBJECT, example.subject), (OBJECT, example.answer), (PROMPT, (0, example.prompt))):
        for place in range(start, end):
            found[place] |= mark
    return found


def stratified_times(rows, *, generator):
    """Times t (B,) in [ε, 1], one in each of B equal strata: U(ε, 1) on average, with less variance."""
    start = torch.rand((), generator=generator)
    return EPSILON + (1 - EPSILON) * ((start + torch.arange(rows) / rows) % 1)


def corrupt(ids, t, mask_id, *, generator):
    """Mask each token of `ids` (B, T) independently with probability `t` (B,)."""
    hit = torch.rand(ids.shape, generator=generator) < t[:, None]
    return ids.masked_fill(hit, mask_id), hit


def protect(hit, marked, objective, *, generator):
    """Of the tokens that are `hit` (B, T) by noise those that may be, and which may be predicted, by their marks."""
    subject, told, prompt = (marked & mark > 0 for mark in (SUBJECT, OBJECT, PROMPT))
    anything = torch.rand(len(hit), 1, generator=generator) < objective.exposure  # rows in which nothing is protected
    if objective.protect == "subject_given_object":  # a subject that is noised takes the object out of sight
        return hit | (told & (hit & subject).any(1, keepdim=True) & ~anything), torch.ones_like(hit)
    free = anything | ~{"none": torch.zeros_like(hit), "subject": subject, "prompt": prompt}[objective.protect]
    return hit & free, free


def diffusion_targets(ids, net, objective=EVERYWHERE, *, marked=None, generator):
    """Predict what tokens of `ids` (B, T) were before some were noised as an `Objective` says, for a diffusion `net`.

    Prompts are noised like the rest, and so is the padding: it is made of end tokens, and a canvas has to end in them.
    `marked` (B, T), the tokens' marks, say what can be protected.
    """
    fixed = objective.rate != "uniform"
    t = torch.full((len(ids),), objective.rate) if fixed else stratified_times(len(ids), generator=generator)
    hit = torch.rand(ids.shape, generator=generator) < t[:, None]
    free = torch.ones_like(hit)
    if marked is not None:
        hit, free = protect(hit, marked, objective, generator=generator)
    return NOISES[objective.noise](ids, t[:, None], hit, free, net, generator)


def mask(ids, t, hit, free, net, generator):
    """A mask in the place of tokens that are hit; they are predicted, weighted 1/t, over the number of tokens."""
    return Targets(ids.masked_fill(hit, network.mask_id(net)), ids, hit / t / ids.numel())


def uniform(ids, t, hit, free, net, generator):
    """Any token in the place of those that are hit. Nothing tells which were: all that are free are predicted."""
    drawn = torch.randint(network.vocab(net), ids.shape, generator=generator)
    times = t.expand(ids.shape) if network.is_time_conditioned(net) else None
    return Targets(torch.where(hit, drawn, ids), ids, free / ids.numel(), times)


def gaussian(ids, t, hit, free, net, generator):
    """Noise on the embeddings of tokens that are hit, in a row at one log-SNR; predicted as with masks."""
    level = noises.log_snr(stratified_times(len(ids), generator=generator))[:, None]
    noise = torch.randn((*ids.shape, net.config.hidden_size), generator=generator)
    return Targets(ids, ids, hit / t / ids.numel(), torch.where(hit, level, torch.inf), noise)


NOISES = {"mask": mask, "uniform": uniform, "gaussian": gaussian}


def autoregressive_targets(ids, real, objective=EVERYWHERE, *, marked=None, generator=None):
    """Predict each token of `ids` (B, T) that is `real` (B, T) and has one before it, all weighted alike.

    What is protected is not predicted.
    """
    following = torch.nn.functional.pad(real[:, 1:], (1, 0)).float()  # (B, T)
    weights = following / following.sum()
    if marked is not None:
        weights = weights * protect(real, marked, objective, generator=generator)[1]
    return Targets(inputs=ids, targets=ids, weights=weights)


def loss(net, batch):
    """Σ weight · CE over the positions with a weight; the head runs at those positions only."""
    where = batch.weights.flatten().nonzero().squeeze(1)
    device = net.get_input_embeddings().weight.device
    there = batch.each(lambda field: field.to(device, non_blocking=True))
    states = network.predictions(net, there.inputs, times=there.times, noise=there.noise)
    chosen = (field.flatten(0, 1)[where.to(device, non_blocking=True)] for field in (states, *there[1:3]))
    return _weighted(net, *chosen)


def loss_everywhere(net, batch):
    """The same for a batch on the network's device, with the head at every position: no shape depends on the noise."""
    states = network.predictions(net, batch.inputs, times=batch.times, noise=batch.noise)
    return _weighted(net, states.flatten(0, 1), batch.targets.flatten(), batch.weights.flatten())


def _weighted(net, states, targets, weights):
    """Σ weight · CE for states (positions, D)."""
    each = torch.nn.functional.cross_entropy(network.logits(net, states).float(), targets, reduction="none")
    return (each * weights).sum()
