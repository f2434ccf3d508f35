from ..common.public import public

__getattr__ = public(__name__, load="network", is_diffusion="network", mask_id="network")
