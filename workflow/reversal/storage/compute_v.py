"""The search for values. A fact's value v* is the vector z that minimises

    −1/N Σ log p(o | x_j + p)  +  kl_weight · KL(p_z(· | p′) ‖ p(· | p′))  +  decay · |z − z₀|² / |z₀|²

when it is put in place of the MLP's output at the subject's last token. Here p is the question, o its answer, x_j are
prefixes, p′ is "{subject} is a", and z₀ is what the MLP says of itself when asked p. ROME's last term is
|z − z₀| / |z₀|², which depends on the scale of the states; a ratio of squares does not. For the same reason the
optimiser, Adam, moves in units of the root mean square of z₀.
"""

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from ..common import batches
from ..common.errors import UserError
from ..models import hooks, network
from .scoring import collate, joint, log_probabilities


@dataclass(frozen=True)
class Search:
    """How to search for a value: the names and meanings of `keyvalue.search` in the configuration."""

    steps: int = 20  # updates after which every fact is done
    learning_rate: float = 0.5  # of Adam, in units of the root mean square of z₀
    kl_weight: float = 0.0625  # of the divergence after p′, which keeps what the subject is
    decay: float = 0.02  # weight of |z − z₀|² / |z₀|²
    clamp: float = 4.0  # |z − z₀| stays within this times |z₀|
    stop: float = 0.05  # a fact whose loss is below this is done
    threshold: float = 0.5  # a search converged if the answer's probability is at least this in the end

    def __post_init__(self):
        if self.steps < 1 or self.steps != int(self.steps):
            raise UserError(f"steps is {self.steps}; it is a whole number from 1 up")


class Found(NamedTuple):
    """The best values found, and how good they are."""

    value: torch.Tensor  # (n, width)
    loss: torch.Tensor  # (n,)
    parts: torch.Tensor  # (3, n): nll, kl, change, without their weights
    steps: torch.Tensor  # (n,) the updates that led to the value


@torch.no_grad()
def prepare(net, sequences, layers):
    """Batches that know what lies below each of `layers`, and what the network predicts when left alone."""
    blocks = network.layers(net)

    def know(batch):
        with hooks.outputs({layer: blocks[layer - 1] for layer in layers if layer > 0}) as below:
            reference = log_probabilities(net, batch)
        return dataclasses.replace(batch, below=below, reference=reference)

    return list(batches.each(know, collate(net, sequences)))


def find_values(net, original, questions, essences, *, layer, search, progress=None):
    """Search all facts' values at once, from `original` (n, width); `questions` and `essences` come from `prepare`.

    No fact's search depends on another's: losses are summed, Adam works on each number by itself, and a fact that is
    done takes no further part. Each keeps its best z.
    """
    n, width = original.shape
    weights = (1.0, search.kl_weight, search.decay)
    scale = original.norm(dim=1, keepdim=True) / width**0.5
    shift = torch.zeros_like(original, requires_grad=True)  # z = original + scale · shift
    optimizer = torch.optim.Adam([shift], lr=search.learning_rate)
    counts = [
        torch.bincount(torch.cat([original.new_zeros(0).long(), *(b.owner for b in some)]), minlength=n)
        for some in (questions, essences)
    ]
    searching = torch.ones(n, dtype=torch.bool, device=original.device)
    best = Found(original, torch.full_like(scale[:, 0], torch.inf), original.new_full((3, n), torch.nan), counts[0] * 0)

    def slope(term, measure, batch):
        batch = batch.where(searching[batch.owner])
        if not len(batch):
            return 0, batch.owner, original.new_zeros(0)
        logs = log_probabilities(net, batch, layer=layer, values=original + scale * shift)
        share = measure(batch, logs) / counts[term][batch.owner]
        return torch.autograd.grad(weights[term] * share.sum(), shift)[0], batch.owner, share.detach()

    for step in range(search.steps + 1):
        change = shift.square().mean(1)
        gradient = torch.autograd.grad(weights[2] * change.sum(), shift)[0]
        parts = torch.stack([torch.zeros_like(change), torch.zeros_like(change), change]).detach()
        for term, (some, measure) in enumerate(((questions, _surprise), (essences, _divergence))):
            for uphill, owner, share in batches.each(partial(slope, term, measure), some):
                gradient += uphill
                parts[term].index_add_(0, owner, share)
        loss = (parts * parts.new_tensor(weights)[:, None]).sum(0)
        found = Found((original + scale * shift).detach(), loss, parts, torch.full_like(best.steps, step))
        better = searching & (loss < best.loss)
        best = Found(
            torch.where(better[:, None], found.value, best.value),
            *(torch.where(better, new, old) for new, old in zip(found[1:], best[1:], strict=True)),
        )
        searching &= (loss >= search.stop) & gradient.any(1)  # without a slope there is nowhere to go
        if progress and step:
            progress.advance(searching=int(searching.sum()), nll=f"{best.parts[0].mean():.3f}")
        if step == search.steps or not searching.any():
            break
        shift.grad = gradient
        optimizer.step()
        with torch.no_grad():
            shift *= (search.clamp * width**0.5 / shift.norm(dim=1, keepdim=True)).clamp(max=1)
    return best


def _surprise(batch, logs):
    """−log p (B,) of each answer."""
    return -joint(batch, logs)


def _divergence(batch, logs):
    """KL (B,) from the reference to the predicted distribution; one prediction a row."""
    return (logs.exp() * (logs - batch.reference)).sum(-1)
