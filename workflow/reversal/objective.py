"""The loss both families share: cross-entropy at chosen positions, each with a weight."""

from typing import NamedTuple

import torch

from . import model


class Targets(NamedTuple):
    """What to feed and what to predict; every field is (B, T). Positions of weight 0 are not predicted at all."""

    inputs: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor


def loss(net, batch):
    """Σ weight · CE over the positions with a weight; the head runs at those positions only."""
    where = batch.weights.flatten().nonzero().squeeze(1)
    device = net.get_input_embeddings().weight.device
    targets = batch.targets.flatten()[where].to(device, non_blocking=True)
    weights = batch.weights.flatten()[where].to(device, non_blocking=True)
    states = model.hidden(net, batch.inputs.to(device, non_blocking=True))
    states = states.flatten(0, 1)[where.to(device, non_blocking=True)]  # (positions, D)
    each = torch.nn.functional.cross_entropy(model.logits(net, states).float(), targets, reduction="none")
    return (each * weights).sum()
