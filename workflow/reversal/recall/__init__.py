"""What a model recalls: `answer` a prompt with a model of either family, `denoise` a canvas step by step."""

from ..common.public import public

__getattr__, __dir__, __all__ = public(__name__, answer="evaluation", denoise="masked", Sampling="sampling")
