"""Work cut into batches by the memory it takes."""

import torch


class Budget:
    """How many bytes a batch may take. Where the GPU has fewer the budget is halved, for good, and the batch cut."""

    def __init__(self, size):
        self.size = size

    def spend(self, costs, work):
        """Call `work(slice)` on batches of consecutive items that take `costs` bytes each, dearest first."""
        start = 0
        while start < len(costs):
            count = min(max(1, int(self.size // costs[start])), len(costs) - start)
            try:
                work(slice(start, start + count))
                start += count
                continue
            except torch.OutOfMemoryError:
                if count == 1:
                    raise
            # Out here, since the exception keeps the failed batch's tensors alive.
            torch.cuda.empty_cache()
            self.size = count * costs[start] / 2
