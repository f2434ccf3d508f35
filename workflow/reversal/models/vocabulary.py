"""The words for the two families of models and for their noise, and the scale of Gaussian noise.

Nothing here needs a network, so figures and the paper import it without PyTorch.
"""

from typing import NamedTuple


class Family(NamedTuple):
    """The name of a family of models, its abbreviation, and the phrase for one model of it."""

    name: str
    short: str
    model: str


FAMILIES = {
    "diffusion": Family("masked diffusion", "MDM", "a masked diffusion model"),
    "autoregressive": Family("autoregressive", "AR", "an autoregressive model"),
}
# {noise: what replaces, or is added to, a token}
NOISES = {
    "mask": "masks",
    "uniform": "other tokens",
    "gaussian": "Gaussian noise",
}
PROTECTED = ("none", "subject", "prompt", "subject_given_object")
TIMES = ("none", "embedded")
POSITIONS = ("rotary", "absolute", "none")
# In a hundred dimensions a noisy embedding identifies its token at almost every time of an ordinary schedule, which
# leaves nothing to recall. So the log signal-to-noise ratio is spread evenly over this range.
LOG_SNR = (-7.0, 2.0)


def log_snr(t):
    """The log signal-to-noise ratio at times t from 0 (almost no noise) to 1 (almost only noise)."""
    low, high = LOG_SNR
    return high + (low - high) * t
