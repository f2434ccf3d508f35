"""The figures: `trace_map` draws a trace as the paper does."""

from ..common.public import public

__getattr__, __dir__, __all__ = public(__name__, trace_map="tracing")
