"""The two families of language models, and what readers see them called."""

from typing import NamedTuple


class Family(NamedTuple):
    """What a family is called: where there is room, where there is not, and one of its models."""

    name: str
    short: str
    model: str


FAMILIES = {
    "diffusion": Family("masked diffusion", "MDM", "a masked diffusion model"),
    "autoregressive": Family("autoregressive", "AR", "an autoregressive model"),
}
