"""Autoregression: training targets, greedy completion, likelihood."""

import torch

from .objective import Targets


def training_targets(ids, real, mask_id=None, *, generator=None):
    """Predict each next token of `ids` (B, T), every real one weighted alike; nothing is random here."""
    following = torch.nn.functional.pad(real[:, 1:], (0, 1)).float()  # (B, T)
    return Targets(inputs=ids, targets=ids.roll(-1, dims=1), weights=following / following.sum())
