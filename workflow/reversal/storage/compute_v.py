"""Optimise the values of facts: ROME's `compute_v`, for all facts at once.

A fact's value v* is the vector z that minimises

    −1/N Σ log p(o | x_j + p)  +  kl_factor · KL(p_z(· | p′) ‖ p(· | p′))  +  weight_decay · |z − z₀|² / |z₀|²

in place of the MLP's output at the lookup position, usually the last subject token. Here p is the prompt, o its answer,
x_j are prefixes, p′ is the KL prompt "{subject} is a", and z₀ is the MLP's output for p. ROME's last term is
|z − z₀| / |z₀|², which depends on the scale of the states; a ratio of squares does not. For the same reason Adam moves
in units of the root mean square of z₀.
"""

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from ..common import batches
from ..models import hooks, network
from .scoring import collate, joint_log_probability, log_probabilities


@dataclass(frozen=True)
class ValueOptimization:
    """The hyperparameters of `compute_v`: `keyvalue.optimization` in the configuration."""

    steps: int = 20  # the most updates of a value
    learning_rate: float = 0.5  # of Adam, in units of the root mean square of z₀
    kl_factor: float = 0.0625  # weight of the KL divergence after the KL prompt
    weight_decay: float = 0.02  # weight of |z − z₀|² / |z₀|²
    clamp_norm_factor: float = 4.0  # |z − z₀| is at most this times |z₀|
    stop_below: float = 0.05  # a fact whose loss is below this is not updated any more
    min_probability: float = 0.5  # a value converged if its answer's probability is at least this


class ValueFit(NamedTuple):
    """The best values of n facts, and their losses."""

    v_star: torch.Tensor  # (n, width)
    loss: torch.Tensor  # (n,)
    steps: torch.Tensor  # (n,) updates that led to the value


@torch.no_grad()
def prepare_batches(net, sequences, layers):
    """`Batch`es of `sequences` with the inputs of `layers` and the unchanged network's predictions, for `compute_v`."""
    blocks = network.layers(net)

    def cache(batch):
        with hooks.record_outputs({layer: blocks[layer - 1] for layer in layers if layer > 0}) as layer_inputs:
            reference = log_probabilities(net, batch)
        return dataclasses.replace(batch, layer_inputs=layer_inputs, reference=reference)

    return list(batches.run_pieces(cache, collate(net, sequences)))


def compute_v(net, original, questions, kl_prompts, *, layer, optimization, progress=None):
    """The `ValueFit` of n facts at one layer, optimised from `original` (n, width), the MLP's own outputs.

    `questions` and `kl_prompts` come from `prepare_batches`. Facts do not affect each other: losses are summed, Adam
    treats each number separately, and a fact that is done is not updated any more. Each keeps its best z.
    """
    n, width = original.shape
    weights = (1.0, optimization.kl_factor, optimization.weight_decay)
    scale = original.norm(dim=1, keepdim=True) / width**0.5
    shift = torch.zeros_like(original, requires_grad=True)  # z = original + scale · shift
    optimizer = torch.optim.Adam([shift], lr=optimization.learning_rate)
    counts = [
        torch.bincount(torch.cat([original.new_zeros(0).long(), *(batch.owner for batch in prompts)]), minlength=n)
        for prompts in (questions, kl_prompts)
    ]
    objective = ((questions, _negative_log_likelihood), (kl_prompts, _kl_divergence))
    active = torch.ones(n, dtype=torch.bool, device=original.device)
    best = ValueFit(original, torch.full_like(scale[:, 0], torch.inf), counts[0] * 0)

    def differentiate(term, measure, batch):
        batch = batch.select(active[batch.owner])
        if not len(batch):
            return 0, batch.owner, original.new_zeros(0)
        log_p = log_probabilities(net, batch, layer=layer, values=original + scale * shift)
        contribution = measure(batch, log_p) / counts[term][batch.owner]
        return torch.autograd.grad(weights[term] * contribution.sum(), shift)[0], batch.owner, contribution.detach()

    for step in range(optimization.steps + 1):
        change = shift.square().mean(1)
        gradient = torch.autograd.grad(weights[2] * change.sum(), shift)[0]
        terms = torch.stack([torch.zeros_like(change), torch.zeros_like(change), change]).detach()
        for term, (prompts, measure) in enumerate(objective):
            for part, owner, contribution in batches.run_pieces(partial(differentiate, term, measure), prompts):
                gradient += part
                terms[term].index_add_(0, owner, contribution)
        loss = (terms * terms.new_tensor(weights)[:, None]).sum(0)
        current = ValueFit((original + scale * shift).detach(), loss, torch.full_like(best.steps, step))
        is_better = active & (loss < best.loss)
        best = ValueFit(
            torch.where(is_better[:, None], current.v_star, best.v_star),
            *(torch.where(is_better, new, old) for new, old in zip(current[1:], best[1:], strict=True)),
        )
        # A value without any effect on the predictions has no gradient and stays as it is.
        active &= (loss >= optimization.stop_below) & gradient.any(1)
        if progress and step:
            progress.advance(active=int(active.sum()), loss=f"{best.loss.mean():.3f}")
        if step == optimization.steps or not active.any():
            break
        shift.grad = gradient
        optimizer.step()
        with torch.no_grad():
            shift *= (optimization.clamp_norm_factor * width**0.5 / shift.norm(dim=1, keepdim=True)).clamp(max=1)
    return best


def _negative_log_likelihood(batch, log_p):
    """−log p (B,) of each answer."""
    return -joint_log_probability(batch, log_p)


def _kl_divergence(batch, log_p):
    """KL (B,) of the predicted distribution from the reference; each sequence has one prediction."""
    return (log_p.exp() * (log_p - batch.reference)).sum(-1)
