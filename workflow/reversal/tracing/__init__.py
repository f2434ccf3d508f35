from ..common.public import public

__getattr__ = public(__name__, trace="engine", draw_noise="engine", trace_prompt="prompt")
