"""What each family learns to predict, and the loss they share: cross-entropy at chosen, weighted positions."""

from typing import NamedTuple

import torch

from ..models import network

EPSILON = 1e-3  # the least time drawn in training, as in SMDM


class Targets(NamedTuple):
    """What to feed and what to predict; every field is (B, T). Positions of weight 0 are not predicted at all."""

    inputs: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor


def stratified_times(rows, *, generator):
    """Times t (B,) in [ε, 1], one in each of B equal strata: U(ε, 1) on average, with less variance."""
    start = torch.rand((), generator=generator)
    return EPSILON + (1 - EPSILON) * ((start + torch.arange(rows) / rows) % 1)


def corrupt(ids, t, mask_id, *, generator):
    """Mask each token of `ids` (B, T) independently with probability `t` (B,)."""
    hit = torch.rand(ids.shape, generator=generator) < t[:, None]
    return ids.masked_fill(hit, mask_id), hit


def diffusion_targets(ids, mask_id, *, generator):
    """Predict the masked tokens of `ids` (B, T), each weighted 1/t, over the number of tokens.

    Prompts are masked like the rest, and so is the padding: it is made of end tokens, and a canvas has to end in them.
    """
    t = stratified_times(len(ids), generator=generator)
    noisy, hit = corrupt(ids, t, mask_id, generator=generator)
    return Targets(inputs=noisy, targets=ids, weights=hit / t[:, None] / ids.numel())


def autoregressive_targets(ids, real):
    """Predict each token of `ids` (B, T) that is `real` (B, T) and has one before it, all weighted alike."""
    following = torch.nn.functional.pad(real[:, 1:], (1, 0)).float()  # (B, T)
    return Targets(inputs=ids, targets=ids, weights=following / following.sum())


def loss(net, batch):
    """Σ weight · CE over the positions with a weight; the head runs at those positions only."""
    where = batch.weights.flatten().nonzero().squeeze(1)
    device = net.get_input_embeddings().weight.device
    targets = batch.targets.flatten()[where].to(device, non_blocking=True)
    weights = batch.weights.flatten()[where].to(device, non_blocking=True)
    states = network.predictions(net, batch.inputs.to(device, non_blocking=True))
    return _weighted(net, states.flatten(0, 1)[where.to(device, non_blocking=True)], targets, weights)


def loss_everywhere(net, batch):
    """The same for a batch on the network's device, with the head at every position: no shape depends on the masks."""
    states = network.predictions(net, batch.inputs)
    return _weighted(net, states.flatten(0, 1), batch.targets.flatten(), batch.weights.flatten())


def _weighted(net, states, targets, weights):
    """Σ weight · CE for states (positions, D)."""
    each = torch.nn.functional.cross_entropy(network.logits(net, states).float(), targets, reduction="none")
    return (each * weights).sum()
