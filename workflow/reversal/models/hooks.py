"""Read what the modules of a network receive and return while it runs, or change it, within a `with` block.

Every function here that touches a network is a context manager, so no hook outlives its block.
"""

from contextlib import contextmanager


@contextmanager
def attach(pairs, *, before=False):
    """Attach forward hooks, given as (module, function) pairs: `before` the modules run, or after."""
    handles = []
    try:
        for module, function in pairs:
            handles.append((module.register_forward_pre_hook if before else module.register_forward_hook)(function))
        yield
    finally:
        for handle in handles:
            handle.remove()


def record_inputs(modules):
    """Record the first input of each of `modules`, {name: module}, in the dict {name: input} that this yields."""
    return _record(modules, lambda inputs, output: inputs[0])


def record_outputs(modules):
    """Record the output of each of `modules`, {name: module}, in the dict {name: output} that this yields."""
    # A copy: some networks, like Falcon, add to their MLP's output in place.
    return _record(modules, lambda inputs, output: _states(output).clone())


def keep_outputs(modules):
    """The same without a copy, so that gradients by these outputs can be taken."""
    return _record(modules, lambda inputs, output: _states(output))


@contextmanager
def _record(modules, select):
    recorded = {}

    def hook_for(name):
        def hook(module, inputs, output):
            recorded[name] = select(inputs, output)

        return hook

    with attach([(module, hook_for(name)) for name, module in modules.items()]):
        yield recorded


def change_output(function):
    """A hook that replaces a module's output (B, T, D) by `function` of it."""

    def hook(module, inputs, output):
        changed = function(_states(output))
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    return hook


def overwrite(rows, positions, values):
    """A hook that replaces a module's output with `values` (n, D) in each of `rows` (n,) at its `positions` (n,)."""
    return change_output(lambda states: states.index_put((rows, positions), values.to(states.dtype)))


@contextmanager
def skip_blocks(blocks, output):
    """Replace the forward pass of each of a network's `blocks` by the constant `output`."""
    try:
        for block in blocks:
            block.forward = lambda *_, **__: output
        yield
    finally:
        for block in blocks:
            vars(block).pop("forward", None)


def _states(output):
    return output[0] if isinstance(output, tuple) else output
