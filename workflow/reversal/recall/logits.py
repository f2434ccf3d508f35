"""Logits over a large vocabulary, computed for a few positions at a time.

The logits of a batch can take many times the memory of its states: those of 512 canvases of 52 tokens, over LLaDA's
vocabulary, take more than its eight billion parameters.
"""

import torch

from ..common.batches import Budget
from ..models import network

BYTES = {"cpu": 64 * 2**20, "cuda": 2**30}  # for all logits in memory at a time
LOGITS = 12  # bytes per logit, with its copies: at most three of float32


def budget(device):
    """A `batches.Budget` for logits and what is computed from them."""
    return Budget(BYTES.get(device.type, BYTES["cuda"]))


def token_log_probs(net, states, token):
    """Log-probabilities (P,), float32, of each `token` (P,) from the states (P, D) that predict it."""
    values = torch.empty(len(token), device=states.device)

    def compute(batch):
        log_probs = network.logits(net, states[batch]).float().log_softmax(-1)
        values[batch] = log_probs.gather(1, token[batch, None])[:, 0]

    budget(states.device).run_batches([LOGITS * network.vocab(net)] * len(token), compute)
    return values
