"""Training steps recorded as CUDA graphs and replayed, for networks so small that the host is slower than the GPU."""

from contextlib import contextmanager
from functools import partial

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ..common.batches import attempt
from . import adapters
from .objective import compute_loss_everywhere


@contextmanager
def disable_attention_mask(net, enabled):
    """If `enabled`, run attention without a mask, which our rows do not need.

    transformers would inspect each batch to decide whether it needs one, which cannot be recorded.
    """
    if not enabled:
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

    A graph's tensors have fixed addresses. So the learning rate is a tensor, and the head runs at every position, since
    the number of masks changes from batch to batch.
    """

    def __init__(self, net, optimizer, clip):
        self.net, self.optimizer, self.clip = net, optimizer, clip
        self.device = net.get_input_embeddings().weight.device
        self.stream = torch.cuda.Stream(self.device)
        self.pool = torch.cuda.graph_pool_handle()  # graphs never run at the same time, so they can share memory
        self.rate = torch.zeros((), device=self.device)
        self.graphs = {}  # {shape: (graph, its static Targets, its loss)}
        optimizer.found_inf = torch.zeros((), device=self.device)  # required beside a grad_scale; see _record
        for group in optimizer.param_groups:
            group["lr"] = self.rate
            for parameter in group["params"]:  # if made while recording, every replay would reset them
                if not optimizer.state[parameter]:
                    optimizer.state[parameter] = {
                        "step": torch.zeros((), device=self.device),
                        "exp_avg": torch.zeros_like(parameter),
                        "exp_avg_sq": torch.zeros_like(parameter),
                    }

    def step(self, batch, rate):
        """Do one update at the learning rate `rate`; returns the loss, still on the device.

        Returns None if there is no memory to record it; then nothing is updated, and all recordings are dropped.
        """
        shape = batch.inputs.shape
        if shape not in self.graphs:
            recording, fits = attempt(partial(self._record, batch), undo=self._discard_graphs)
            if not fits:
                return None
            self.graphs[shape] = recording
        graph, static, loss = self.graphs[shape]
        for field, new in zip(static, batch, strict=True):
            if new is not None:
                field.copy_(new, non_blocking=True)
        self.rate.fill_(rate)
        graph.replay()
        return loss.clone()

    def _discard_graphs(self):
        self.graphs.clear()
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.grad_scale = self.optimizer.found_inf = None

    def _record(self, batch):
        static = batch.map(lambda field: field.to(self.device))
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):  # a first run, since compilation and set-up cannot be recorded
            self._compute_gradients(static)
            self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            loss = self._compute_gradients(static)
            gradients = [parameter.grad for parameter in adapters.trainable_parameters(self.net).values()]
            norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
            # The optimizer divides gradients by this: clipping without a pass of its own over them.
            self.optimizer.grad_scale = (norm / self.clip).clamp(min=1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return graph, static, loss

    def _compute_gradients(self, batch):
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            loss = compute_loss_everywhere(self.net, batch)
        loss.backward()
        return loss.detach()
