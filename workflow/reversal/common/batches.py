"""Running rows of unequal length through a network in batches: alike in length, and halved where memory is short."""

import math

import torch

from .errors import UserError

SIZES = {"cpu": 50, "cuda": 512}  # small batches stay in a CPU's cache, large ones fill a GPU
PRECISIONS = ("float32", "bfloat16")


def run(rows, lengths, device):
    """The results of `rows(indices)`, one per index, for batches of rows alike in length; in the order of `lengths`.

    A batch that runs out of GPU memory is run again in halves.
    """
    size = SIZES.get(device.type, SIZES["cuda"])
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    share = math.ceil(len(order) / max(1, math.ceil(len(order) / size)))  # batches of one size, the last maybe less
    results = [None] * len(order)
    for start in range(0, len(order), max(1, share)):
        indices = order[start : start + share]
        for index, result in zip(indices, _halving(rows, indices), strict=True):
            results[index] = result
    return results


def _halving(rows, indices):
    try:
        return rows(indices)
    except torch.OutOfMemoryError:
        if len(indices) == 1:
            raise
    torch.cuda.empty_cache()  # here, not above: the exception keeps the failed batch's tensors alive
    middle = len(indices) // 2
    return [*_halving(rows, indices[:middle]), *_halving(rows, indices[middle:])]


def autocast(device, precision):
    """The context in which networks run: as they are (float32), or with matrix products in bfloat16."""
    if precision not in PRECISIONS:
        raise UserError(f"precision is {precision!r}; it is one of {', '.join(PRECISIONS)}")
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def pad(rows, value, *, left=False):
    """Lists of ids as one tensor (B, T) and its real positions (B, T), padded right or left with `value`."""
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), value)
    real = torch.zeros((len(rows), longest), dtype=torch.bool)
    for i, row in enumerate(rows):
        place = slice(longest - len(row), longest) if left else slice(0, len(row))
        ids[i, place] = torch.tensor(row)
        real[i, place] = True
    return ids, real
