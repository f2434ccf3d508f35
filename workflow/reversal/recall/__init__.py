from ..common.public import public

__getattr__ = public(__name__, denoise="masked", Sampling="sampling")
