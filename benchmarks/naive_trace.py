"""Causal tracing as first published: one forward pass of the whole network, with hooks, for every state.

The reference of the tests and the baseline of the benchmark. Row 0 of each batch is the clean run, the other rows are
corrupted.
"""

from contextlib import ExitStack

import torch

from reversal.models import network


@torch.no_grad()
def trace(net, input_ids, *, subject, answer, noise, kind="state", window=1, severed=None, positions=None):
    """Joint log-probabilities: clean (), corrupted (draws,), restored (positions, layers, draws).

    Only `positions` are restored; None: all.
    """
    depth = len(network.layers(net))
    batch = torch.as_tensor(input_ids).to(net.device).repeat(1 + len(noise), 1)
    corrupted = {}
    base = _run(net, batch, subject, answer, noise, _record_outputs(net, severed, corrupted))
    positions = range(batch.shape[1]) if positions is None else positions
    restored = torch.empty(len(positions), depth, len(noise), device=net.device)
    for row, position in enumerate(positions):
        for layer in range(depth):
            if kind == "state":
                patches = [_copy_clean(_find_module(net, kind, layer), position)]
            else:
                layers = range(max(0, layer - window // 2), min(depth, layer - (-window // 2)))
                patches = [_copy_clean(_find_module(net, kind, other), position) for other in layers]
            above = range(layer + 1, depth) if severed else ()
            patches += [_freeze(_find_module(net, severed, other), position, corrupted[other]) for other in above]
            restored[row, layer] = _run(net, batch, subject, answer, noise, patches)[1:]
    return base[0], base[1:], restored


def _run(net, batch, subject, answer, noise, hooks):
    """The joint log-probability (rows,) of the answer, with noise on the subject in all rows but the first."""

    def corrupt(module, args, output):
        output = output.clone()
        output[1:, subject[0] : subject[1]] += noise.to(output)
        return output

    with ExitStack() as stack:
        for module, hook in [(net.get_input_embeddings(), corrupt), *hooks]:
            stack.callback(module.register_forward_hook(hook).remove)
        logits = net(input_ids=batch, use_cache=False).logits[..., : network.vocab(net)]
    logs = network.suppress_mask(net, logits.float()).log_softmax(-1)
    return sum(logs[:, position, token] for position, token in answer.items())


def _find_module(net, kind, layer):
    block = network.layers(net)[layer]
    return {"state": lambda b: b, "mlp": network.mlp, "attn": network.attention}[kind](block)


def _copy_clean(module, position):
    """A hook that gives all rows the clean row's output at `position`."""
    return module, lambda module, args, output: _patch(output, position, lambda value: value[:1])


def _freeze(module, position, values):
    """A hook that gives all rows the `values` (rows, T, D) of an earlier run at `position`."""
    return module, lambda module, args, output: _patch(output, position, lambda value: values[:, position])


def _patch(output, position, compute):
    value = (output[0] if isinstance(output, tuple) else output).clone()
    value[:, position] = compute(value[:, position])
    return (value, *output[1:]) if isinstance(output, tuple) else value


def _record_outputs(net, kind, values):
    """Hooks that record the output of every module of a kind in `values`, by layer; none if `kind` is None."""

    def record(layer):
        def hook(module, args, output):
            values[layer] = (output[0] if isinstance(output, tuple) else output).clone()

        return hook

    layers = range(len(network.layers(net))) if kind else ()
    return [(_find_module(net, kind, layer), record(layer)) for layer in layers]
