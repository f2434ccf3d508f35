"""Causal tracing: `trace_prompt` traces an answer, `trace` a sequence of tokens."""

from ..common.public import public

__getattr__, __dir__, __all__ = public(__name__, trace_prompt="prompt", trace="engine", draw_noise="engine")
