"""How long work takes on a device."""

import time

import torch


def measure_time(work, device):
    """The seconds that `work()` takes, and what it returns."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    result = work()
    wait()
    return time.perf_counter() - start, result
