"""The words for how a diffusion network is noised and taught, and the scale of Gaussian noise. No network is needed."""

NOISES = {
    "mask": "masks",
    "uniform": "other tokens",
    "gaussian": "Gaussian noise",
}
PROTECTED = ("none", "subject", "prompt", "subject_given_object")
TIMES = ("none", "embedded")
# In a hundred dimensions a token is told from its noisy embedding at almost every time of a plain schedule: nothing
# would be left to recall. So the log of signal over noise is spread evenly between these.
LOG_SNR = (-7.0, 2.0)


def log_snr(t):
    """The log of signal over noise at times t from 0, hardly noised, to 1, hardly anything else."""
    low, high = LOG_SNR
    return high + (low - high) * t
