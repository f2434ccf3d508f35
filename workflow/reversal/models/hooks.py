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


def inputs(modules):
    """While it lasts, each run of one of `modules` leaves its first input under the module's name in the dict given."""
    return _recorded(modules, lambda given, output: given[0])


def outputs(modules):
    """While it lasts, each run of one of `modules` leaves its output under the module's name in the dict given."""
    # A copy: some networks, like Falcon, add to what their MLP puts out in place.
    return _recorded(modules, lambda given, output: _states(output).clone())


@contextmanager
def _recorded(modules, pick):
    seen = {}

    def record(name):
        def hook(module, given, output):
            seen[name] = pick(given, output)

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
