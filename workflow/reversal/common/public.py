"""The public names of a package, imported from its modules on first use.

So `from reversal.tracing import trace` works in a notebook, and a table is still made without importing PyTorch.
"""

from importlib import import_module


def public(package, **modules):
    """The `__getattr__`, `__dir__` and `__all__` of a package: `modules` says which of its modules has which name."""

    def find(name):
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return find, lambda: [*modules], [*modules]
