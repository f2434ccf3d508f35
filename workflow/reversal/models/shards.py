"""A checkpoint's tensors in one safetensors file or several, read one by one into a network of our own."""

from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from .folders import ModelError, read_json

INDEX = "model.safetensors.index.json"
DTYPES = ("F32", "F16", "BF16")


def locate(folder):
    """{tensor: file} of a checkpoint in Hugging Face layout: by its index, or all in model.safetensors."""
    folder = Path(folder)
    if not (folder / INDEX).is_file():
        if not (folder / "model.safetensors").is_file():
            raise ModelError(
                f"{folder}: no model.safetensors, nor {INDEX} that says which files have the weights; other formats "
                "are never loaded"
            )
        with opened(folder / "model.safetensors") as file:
            return dict.fromkeys(file.keys(), folder / "model.safetensors")
    places = read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict):
        raise ModelError(f"{folder / INDEX}: no weight_map; an index says which file has which tensor")
    for name in sorted(set(places.values())):
        if Path(name).name != name or not (folder / name).is_file():
            raise ModelError(f"{folder / name}: no such file, though {INDEX} lists it")
    return {tensor: folder / name for tensor, name in places.items()}


def opened(file):
    """A safetensors file to read from, within a `with`."""
    if file.suffix != ".safetensors":
        raise ModelError(f"{file}: not a .safetensors file; weights in other formats are never loaded")
    try:
        return safe_open(file, framework="pt")
    except FileNotFoundError:
        raise ModelError(f"{file}: no such file") from None
    except SafetensorError as error:
        raise ModelError(f"{file}: not a whole safetensors file ({error}); fetch it again") from None


def network_of(kind, config, folder, *, rename, device, dtype):
    """A network of a transformers class `kind` with the tensors of a checkpoint, held in memory once; eval mode.

    `rename` gives a parameter's name in the checkpoint. `dtype` None: as the checkpoint has them.
    """
    places, source = locate(folder), Path(folder) / "*.safetensors"
    with torch.device("meta"):
        net = kind(config)
    wanted = {rename(name): parameter for name, parameter in net.named_parameters()}
    for name in sorted(wanted.keys() - places.keys()):
        raise ModelError(f"{source}: tensor {name} is missing; a network of {config.num_hidden_layers} blocks has it")
    for name in sorted(places.keys() - wanted.keys()):
        raise ModelError(f"{source}: tensor {name} is not part of a network of {config.num_hidden_layers} blocks")
    with ExitStack() as stack:
        files = {file: stack.enter_context(opened(file)) for file in set(places.values())}
        for name, parameter in wanted.items():
            piece = _slice(files[places[name]], name, places[name])
            given = tuple(piece.get_shape())
            if piece.get_dtype() not in DTYPES:
                raise ModelError(f"{source}: tensor {name} is {piece.get_dtype()}; allowed: {', '.join(DTYPES)}")
            if given != tuple(parameter.shape):
                raise ModelError(f"{source}: tensor {name} has shape {given}, expected {tuple(parameter.shape)}")
        first = next(iter(wanted))
        net = net.to(dtype or files[places[first]].get_tensor(first).dtype).to_empty(device=device)
        with torch.no_grad():
            for name, parameter in net.named_parameters():
                theirs = rename(name)
                tensor = files[places[theirs]].get_tensor(theirs)
                if not tensor.sum(dtype=torch.float32).isfinite():  # far faster than to look at each
                    raise ModelError(f"{source}: tensor {theirs} has values that are not finite")
                parameter.copy_(tensor)
    net.model.rotary_emb = type(net.model.rotary_emb)(config).to(device)  # its tables are not in the checkpoint
    return net.eval()


def _slice(file, name, path):
    try:
        return file.get_slice(name)
    except SafetensorError:
        raise ModelError(f"{path}: tensor {name} is missing, though {INDEX} lists it there") from None
