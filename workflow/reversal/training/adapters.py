"""Low-rank adapters (LoRA, by peft): small matrices trained beside frozen ones and finally merged into them."""

import torch

from ..common.errors import UserError


def attach(net, *, rank, alpha, seed):
    """Add an adapter to each matrix of the network's blocks and freeze the rest; returns the argument of `merge`.

    An adapter adds alpha / rank · B A x. B is initially 0, so the network computes what it did. Adapters are float32.
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
    for parameter in trainable_parameters(net).values():
        parameter.data = parameter.data.float()  # peft makes those of 16-bit weights in 16 bits
    return adapted


def merge(adapted):
    """Add the adapters to the matrices they belong to; the network is an ordinary one again."""
    adapted.merge_and_unload()


def trainable_parameters(net):
    """{name: parameter} of what training changes: everything, or the adapters."""
    return {name: parameter for name, parameter in net.named_parameters() if parameter.requires_grad}
