"""Steps of training recorded on a GPU and replayed, for networks so small that the host is slower than the card."""

from contextlib import contextmanager
from functools import partial

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ..common.batches import attempt
from . import adapters, objective


@contextmanager
def unmasked(net, wanted):
    """Within it, where `wanted`, attention gets no mask: our rows need none.

    transformers would look into each batch for what to mask, which no recording can.
    """
    if not wanted:
        yield
        return
    before = net.config._attn_implementation
    AttentionInterface.register("sdpa_without_mask", sdpa_attention_forward)
    net.set_attn_implementation("sdpa_without_mask")
    try:
        yield
    finally:
        net.set_attn_implementation(before)


class Recorder:
    """One CUDA graph for each shape of batch: forward, backward, clipping and the optimizer's step.

    A graph's tensors live at fixed places. So the rate is a tensor, and the head runs at every position, since how many
    are masked changes from batch to batch.
    """

    def __init__(self, net, optimizer, clip):
        self.net, self.optimizer, self.clip = net, optimizer, clip
        self.device = net.get_input_embeddings().weight.device
        self.stream = torch.cuda.Stream(self.device)
        self.pool = torch.cuda.graph_pool_handle()  # graphs never run at once, so they may share their memory
        self.rate = torch.zeros((), device=self.device)
        self.graphs = {}  # shape: graph, its Targets, its loss
        optimizer.found_inf = torch.zeros((), device=self.device)  # asked for beside a scale; see _record
        for group in optimizer.param_groups:
            group["lr"] = self.rate
            for parameter in group["params"]:  # made while recording, they would be blank again at every replay
                if not optimizer.state[parameter]:
                    optimizer.state[parameter] = {
                        "step": torch.zeros((), device=self.device),
                        "exp_avg": torch.zeros_like(parameter),
                        "exp_avg_sq": torch.zeros_like(parameter),
                    }

    def step(self, batch, rate):
        """One update at the learning rate `rate`; returns the loss, still on the device.

        None where there is no memory to record it: nothing was done then, and all recordings are dropped.
        """
        shape = batch.inputs.shape
        if shape not in self.graphs:
            recorded, fits = attempt(partial(self._record, batch), undo=self._forget)
            if not fits:
                return None
            self.graphs[shape] = recorded
        graph, held, loss = self.graphs[shape]
        for mine, new in zip(held, batch, strict=True):
            if new is not None:
                mine.copy_(new, non_blocking=True)
        self.rate.fill_(rate)
        graph.replay()
        return loss.clone()

    def _forget(self):
        self.graphs.clear()
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.grad_scale = self.optimizer.found_inf = None

    def _record(self, batch):
        held = batch.each(lambda field: field.to(self.device))
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):  # what is compiled or set up at first use cannot be recorded
            self._gradients(held)
            self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            loss = self._gradients(held)
            norm = torch.nn.utils.get_total_norm([p.grad for p in adapters.trained(self.net).values()], foreach=True)
            # Clipping by the optimizer itself, which divides by this, saves a pass over the gradients.
            self.optimizer.grad_scale = (norm / self.clip).clamp(min=1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return graph, held, loss

    def _gradients(self, batch):
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            loss = objective.loss_everywhere(self.net, batch)
        loss.backward()
        return loss.detach()
