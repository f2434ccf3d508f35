"""The head over a large vocabulary, run for some predictions at a time.

The logits of a batch can take many times what its states do: those of 512 canvases of 52 tokens, over LLaDA's
vocabulary, take more than the weights of its eight billion parameters.
"""

import torch

from ..common.batches import Budget
from ..models import network

BYTES = {"cpu": 64 * 2**20, "cuda": 2**30}  # for the logits that are there at once
LOGITS = 12  # bytes for each, with its copies: at most three of float32


def budget(device):
    """A `batches.Budget` for logits and what is made of them."""
    return Budget(BYTES.get(device.type, BYTES["cuda"]))


def token_logs(net, states, token):
    """Log-probabilities (P,), float32, of each `token` (P,) from the states (P, D) that predict it."""
    found = torch.empty(len(token), device=states.device)

    def read(some):
        logs = network.logits(net, states[some]).float().log_softmax(-1)
        found[some] = logs.gather(1, token[some, None])[:, 0]

    budget(states.device).spend([LOGITS * network.vocab(net)] * len(token), read)
    return found
