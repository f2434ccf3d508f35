"""The two families of language models, and what readers see them called."""

from typing import NamedTuple


class Family(NamedTuple):
    """What a family is called where there is room, and where there is not."""

    name: str
    short: str


FAMILIES = {
    "diffusion": Family("masked diffusion", "MDM"),
    "autoregressive": Family("autoregressive", "AR"),
}
