"""Looking into a network while it runs, and changing what its modules put out: never for longer than a `with` block."""

from contextlib import contextmanager


@contextmanager
def attached(pairs):
    """While it lasts, forward hooks are on the (module, function) `pairs`."""
    handles = []
    try:
        for module, function in pairs:
            handles.append(module.register_forward_hook(function))
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def inputs(modules):
    """While it lasts, each run of one of `modules` leaves its first input under the module's name in the dict given."""
    seen = {}

    def record(name):
        def hook(module, given, output):
            seen[name] = given[0]

        return hook

    with attached([(module, record(name)) for name, module in modules.items()]):
        yield seen


@contextmanager
def outputs(modules):
    """While it lasts, each run of one of `modules` leaves its output under the module's name in the dict given."""
    seen = {}

    def record(name):
        def hook(module, given, output):
            # A copy: some networks, like Falcon, add to what their MLP puts out in place.
            seen[name] = _states(output).clone()

        return hook

    with attached([(module, record(name)) for name, module in modules.items()]):
        yield seen


def overwrite(row, place, values):
    """A hook that puts `values` (n, D) in place of what a module puts out in each `row` (n,) at its `place` (n,)."""

    def hook(module, given, output):
        states = _states(output)
        changed = states.index_put((row, place), values.to(states.dtype))
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    return hook


@contextmanager
def skipped(blocks, output):
    """While it lasts, `blocks` do not run, and each puts out `output`."""
    try:
        for block in blocks:
            block.forward = lambda *_, **__: output
        yield
    finally:
        for block in blocks:
            vars(block).pop("forward", None)


def _states(output):
    return output[0] if isinstance(output, tuple) else output
