"""Batches of a size that suits the device, halved when GPU memory runs out."""

import math
from functools import partial

import torch

from .errors import UserError

SIZES = {"cpu": 50, "cuda": 512}  # small batches stay in a CPU's cache, large ones fill a GPU
PRECISIONS = ("float32", "bfloat16")


def attempt(work, *, last=False, undo=None):
    """(`work()`, True), or (None, False) if it runs out of GPU memory; the memory is freed.

    `undo()` drops what failed work leaves behind. If it is the `last` resort, since the batch cannot be smaller, the
    error is raised.
    """
    if last:
        return work(), True
    try:
        return work(), True
    except torch.OutOfMemoryError:
        pass
    # Outside the except block, which keeps the tensors of the failed work alive.
    if undo:
        undo()
    torch.cuda.empty_cache()
    return None, False


def run_pieces(work, pieces):
    """Yield `work(piece)` for each of `pieces`; one too large for memory is replaced in the list by its halves.

    A piece has a length and can be sliced. A second pass over the list starts from the halves.
    """
    place = 0
    while place < len(pieces):
        piece = pieces[place]
        result, fits = attempt(partial(work, piece), last=len(piece) == 1)
        if fits:
            yield result
            place += 1
        else:
            middle = len(piece) // 2
            pieces[place : place + 1] = [piece[:middle], piece[middle:]]


class Budget:
    """How many bytes a batch may take; halved for good when the GPU has fewer."""

    def __init__(self, size):
        self.size = size

    def run_batches(self, costs, work):
        """Call `work(slice)` on batches of consecutive items that take `costs` bytes each, largest first."""
        start = 0
        while start < len(costs):
            count = min(max(1, int(self.size // costs[start])), len(costs) - start)
            _, fits = attempt(partial(work, slice(start, start + count)), last=count == 1)
            if fits:
                start += count
            else:
                self.size = count * costs[start] / 2


def run_by_length(rows, lengths, device):
    """The results of `rows(indices)`, one per index, run in batches of similar length; in the order of `lengths`."""
    size = SIZES.get(device.type, SIZES["cuda"])
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    share = math.ceil(len(order) / max(1, math.ceil(len(order) / size)))  # equal batches, the last maybe smaller
    pieces = [order[start : start + share] for start in range(0, len(order), max(1, share))]
    results = {}
    for pairs in run_pieces(lambda batch: zip(batch, rows(batch), strict=True), pieces):
        results.update(pairs)
    return [results[index] for index in range(len(order))]


def autocast(device, precision):
    """The context in which networks run: float32, or autocast to bfloat16."""
    if precision not in PRECISIONS:
        raise UserError(f"precision is {precision!r}; it is one of {', '.join(PRECISIONS)}")
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def pad(rows, value, *, left=False, width=0):
    """Lists of ids as one tensor (B, T), padded right or left with `value`, and a mask (B, T) of the real positions.

    T is the length of the longest row, or `width` if that is more.
    """
    width = max(width, *map(len, rows))
    ids = torch.full((len(rows), width), value)
    real = torch.zeros((len(rows), width), dtype=torch.bool)
    for i, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, place] = torch.tensor(row)
        real[i, place] = True
    return ids, real
