"""Language models of both families: `load` one from a folder."""

from ..common.public import public

__getattr__, __dir__, __all__ = public(__name__, load="network", is_diffusion="network", mask_id="network")
