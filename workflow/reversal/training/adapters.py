"""Low-rank adapters (LoRA, by peft): small matrices trained beside frozen ones, and merged into them in the end."""

import torch

from ..common.errors import UserError


def attach(net, *, rank, alpha, seed):
    """Put an adapter beside each matrix of the network's blocks, and freeze the rest; returns what `merge` takes.

    An adapter adds alpha / rank · B A x; B begins as 0, so that the network is what it was. It is float32.
    """
    try:
        import peft  # here, since nothing else needs it
    except ImportError:
        raise UserError("an adapter needs peft, which is not installed; requirements.txt names it") from None
    device = net.get_input_embeddings().weight.device
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear")
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        adapted = peft.LoraModel(net, config, "default")
    for parameter in trained(net).values():
        parameter.data = parameter.data.float()  # those beside weights in 16 bits are made in 16 bits
    return adapted


def merge(adapted):
    """Add the adapters to the matrices they stand beside: the network is an ordinary one again."""
    adapted.merge_and_unload()


def trained(net):
    """{name: parameter} of what training changes: everything, or the adapters."""
    return {name: parameter for name, parameter in net.named_parameters() if parameter.requires_grad}
