"""Causal tracing of single attention heads, for any network whose heads are concatenated before one output matrix."""

from collections.abc import Mapping, Sequence

import torch

from ..models import hooks, network
from .engine import Problem, Runs, Trace, _check_arguments, _log_probabilities, corrupt_subject, embed, score_runs


@torch.no_grad()
def trace_heads(
    net: torch.nn.Module,
    input_ids: torch.Tensor,
    *,
    subject: tuple[int, int],
    answer: Mapping[int, int],
    noise: torch.Tensor | None = None,
    replacement: Sequence[int] | None = None,
) -> Trace:
    """Trace one sequence as `trace` does, restoring the output of one head at all positions: scores (heads, layers)."""
    problem = Problem(embed(net, input_ids), corrupt_subject(net, input_ids, subject, noise, replacement), answer)
    _check_arguments(net, [problem], "attn", 1, None, "float32")
    embedded = torch.cat([problem.clean[None], problem.corrupted])
    position, token = torch.tensor(problem.answer_pairs(), device=embedded.device).T
    projections = dict(enumerate(map(network.attention_projection, network.layers(net))))
    with hooks.record_inputs(projections) as inputs:
        base = _log_probabilities(net, embedded, position, token)
    draws, heads = len(problem.corrupted), net.config.num_attention_heads
    restored = base.new_empty(draws, heads, len(projections), len(token))
    for layer, projection in projections.items():
        clean = inputs[layer][0].unflatten(-1, (heads, -1))  # (T, heads, D / heads)

        def restore_each_head(module, arguments, clean=clean):
            """Row i has the clean output of head i."""
            changed = arguments[0].clone().unflatten(-1, (heads, -1))
            head = torch.arange(heads, device=changed.device)
            changed[head, :, head] = clean.transpose(0, 1)
            return (changed.flatten(-2), *arguments[1:])

        handle = projection.register_forward_pre_hook(restore_each_head)
        try:
            for draw, corrupted in enumerate(problem.corrupted):
                rows = corrupted.expand(heads, -1, -1)
                restored[draw, :, layer] = _log_probabilities(net, rows, position, token)
        finally:
            handle.remove()
    return score_runs(Runs(base[0].cpu(), base[1:].cpu(), restored.cpu()))
