"""Work in batches of a size that suits the device, and what happens where GPU memory runs out."""

import math
from functools import partial

import torch

from .errors import UserError

SIZES = {"cpu": 50, "cuda": 512}  # small batches stay in a CPU's cache, large ones fill a GPU
PRECISIONS = ("float32", "bfloat16")


def attempt(work, *, last=False, undo=None):
    """(`work()`, True); or (None, False) where it runs out of GPU memory and the memory is free again.

    `undo()` drops what failed work leaves behind. Work that is the `last` resort, since there is no smaller, raises
    the error.
    """
    if last:
        return work(), True
    try:
        return work(), True
    except torch.OutOfMemoryError:
        pass
    # Out here, not above: the exception keeps the failed work's tensors alive.
    if undo:
        undo()
    torch.cuda.empty_cache()
    return None, False


def each(work, pieces):
    """Yield `work(piece)` for each of the list `pieces`; one too large for memory is replaced, in the list, by halves.

    A piece has a length and can be sliced. Who goes through the list again finds the halves.
    """
    place = 0
    while place < len(pieces):
        piece = pieces[place]
        found, fits = attempt(partial(work, piece), last=len(piece) == 1)
        if fits:
            yield found
            place += 1
        else:
            middle = len(piece) // 2
            pieces[place : place + 1] = [piece[:middle], piece[middle:]]


class Budget:
    """How many bytes a batch may take. Where the GPU has fewer, the budget is halved for good and the batch cut."""

    def __init__(self, size):
        self.size = size

    def spend(self, costs, work):
        """Call `work(slice)` on batches of consecutive items that take `costs` bytes each, largest first."""
        start = 0
        while start < len(costs):
            count = min(max(1, int(self.size // costs[start])), len(costs) - start)
            _, fits = attempt(partial(work, slice(start, start + count)), last=count == 1)
            if fits:
                start += count
            else:
                self.size = count * costs[start] / 2


def run(rows, lengths, device):
    """The results of `rows(indices)`, one per index, for batches of rows alike in length; in the order of `lengths`."""
    size = SIZES.get(device.type, SIZES["cuda"])
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    share = math.ceil(len(order) / max(1, math.ceil(len(order) / size)))  # batches of one size, the last maybe less
    pieces = [order[start : start + share] for start in range(0, len(order), max(1, share))]
    found = {}
    for pairs in each(lambda some: zip(some, rows(some), strict=True), pieces):
        found.update(pairs)
    return [found[index] for index in range(len(order))]


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
