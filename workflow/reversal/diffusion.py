"""Masked diffusion: noise and training targets, sampling by unmasking, likelihood."""

import torch

from .objective import Targets

EPSILON = 1e-3  # the least time drawn in training, as in SMDM


def stratified_times(rows, *, generator):
    """Times t (B,) in [ε, 1], one in each of B equal strata: U(ε, 1) on average, with less variance."""
    start = torch.rand((), generator=generator)
    return EPSILON + (1 - EPSILON) * ((start + torch.arange(rows) / rows) % 1)


def corrupt(ids, t, mask_id, *, generator):
    """Mask each token of `ids` (B, T) independently with probability `t` (B,)."""
    hit = torch.rand(ids.shape, generator=generator) < t[:, None]
    return ids.masked_fill(hit, mask_id), hit


def training_targets(ids, real, mask_id, *, generator):
    """Predict the masked tokens of `ids` (B, T), each weighted 1/t, over the number of tokens.

    Prompts are masked like the rest. `real` (B, T) marks the rows without their padding; here the padding counts too:
    it is made of end tokens, and the sampler's canvas has to end in them.
    """
    t = stratified_times(len(ids), generator=generator)
    noisy, hit = corrupt(ids, t, mask_id, generator=generator)
    return Targets(inputs=noisy, targets=ids, weights=hit / t[:, None] / ids.numel())
