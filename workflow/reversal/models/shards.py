"""A checkpoint's tensors, in one safetensors file or several, read one at a time into a network."""

from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from .folders import ModelError, read_json

INDEX = "model.safetensors.index.json"
DTYPES = ("F32", "F16", "BF16")


def locate_tensors(folder):
    """{tensor: file} of a checkpoint in Hugging Face layout: from its index, or all in model.safetensors."""
    folder = Path(folder)
    if not (folder / INDEX).is_file():
        if not (folder / "model.safetensors").is_file():
            raise ModelError(
                f"{folder}: no model.safetensors, nor {INDEX} that says which files have the weights; other formats "
                "are never loaded"
            )
        with open_safetensors(folder / "model.safetensors") as file:
            return dict.fromkeys(file.keys(), folder / "model.safetensors")
    files = read_json(folder / INDEX).get("weight_map")
    if not isinstance(files, dict):
        raise ModelError(f"{folder / INDEX}: no weight_map; an index says which file has which tensor")
    for name in sorted(set(files.values())):
        if Path(name).name != name or not (folder / name).is_file():
            raise ModelError(f"{folder / name}: no such file, though {INDEX} lists it")
    return {tensor: folder / name for tensor, name in files.items()}


def open_safetensors(file):
    """Open a safetensors file; the result is a context manager."""
    if file.suffix != ".safetensors":
        raise ModelError(f"{file}: not a .safetensors file; weights in other formats are never loaded")
    try:
        return safe_open(file, framework="pt")
    except FileNotFoundError:
        raise ModelError(f"{file}: no such file") from None
    except SafetensorError as error:
        raise ModelError(f"{file}: not a whole safetensors file ({error}); fetch it again") from None


def load_network(kind, config, folder, *, rename, device, dtype):
    """Load a checkpoint into a network of a transformers class `kind`, which holds the only copy; eval mode.

    `rename` gives a parameter's name in the checkpoint. With `dtype` None, the checkpoint's own is used.
    """
    files_of, source = locate_tensors(folder), Path(folder) / "*.safetensors"
    with torch.device("meta"):
        net = kind(config)
    parameters = {rename(name): parameter for name, parameter in net.named_parameters()}
    for name in sorted(parameters.keys() - files_of.keys()):
        raise ModelError(f"{source}: tensor {name} is missing; a network of {config.num_hidden_layers} blocks has it")
    for name in sorted(files_of.keys() - parameters.keys()):
        raise ModelError(f"{source}: tensor {name} is not part of a network of {config.num_hidden_layers} blocks")
    with ExitStack() as stack:
        opened = {file: stack.enter_context(open_safetensors(file)) for file in set(files_of.values())}
        for name, parameter in parameters.items():
            tensor = _get_slice(opened[files_of[name]], name, files_of[name])
            if tensor.get_dtype() not in DTYPES:
                raise ModelError(f"{source}: tensor {name} is {tensor.get_dtype()}; allowed: {', '.join(DTYPES)}")
            shape, expected = tuple(tensor.get_shape()), tuple(parameter.shape)
            if shape != expected:
                raise ModelError(f"{source}: tensor {name} has shape {shape}, expected {expected}")
        first = next(iter(parameters))
        net = net.to(dtype or opened[files_of[first]].get_tensor(first).dtype).to_empty(device=device)
        with torch.no_grad():
            for name, parameter in ((rename(name), parameter) for name, parameter in net.named_parameters()):
                tensor = opened[files_of[name]].get_tensor(name)
                if not tensor.sum(dtype=torch.float32).isfinite():  # far faster than a test of each value
                    raise ModelError(f"{source}: tensor {name} has values that are not finite")
                parameter.copy_(tensor)
    net.model.rotary_emb = type(net.model.rotary_emb)(config).to(device)  # its tables are not in the checkpoint
    return net.eval()


def _get_slice(file, name, path):
    try:
        return file.get_slice(name)
    except SafetensorError:
        raise ModelError(f"{path}: tensor {name} is missing, though {INDEX} lists it there") from None
