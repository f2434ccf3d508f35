"""Checkpoints of published diffusion models in Hugging Face layout: what LLaDA and Dream have in common."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from . import folders, hub, network, shards, tokens
from .folders import ModelError


class Layout(NamedTuple):
    """How the checkpoints of one kind of model are read."""

    name: str
    kind: Any  # the transformers class that computes the same
    required: dict  # what their configuration has to say
    configuration: Callable  # from theirs, a dict, and the file's name to transformers'
    rename: Callable  # from our names of parameters to theirs
    shifted: bool  # whether a token is predicted at the position before it


def load(layout, folder, *, device, dtype):
    """The network of a checkpoint: config.json, and safetensors with their index or in one file."""
    source = Path(folder) / "config.json"
    if not source.is_file():
        raise ModelError(f"{source}: no such file; a checkpoint has config.json, *.safetensors and a tokenizer")
    config = configuration(layout, folders.read_json(source), source)
    return shards.network_of(layout.kind, config, folder, rename=layout.rename, device=device, dtype=dtype)


def configuration(layout, told, source):
    """The transformers configuration of a diffusion network, from a checkpoint's own (a dict, from a file `source`)."""
    for key, wanted in layout.required.items():
        # A configuration leaves out what its own code has for a default; but it says whose it is.
        if (given := told.get(key, None if key == "model_type" else wanted)) != wanted:
            raise ModelError(f"{source}: {key} is {given!r}; allowed for a {layout.name}: {wanted!r}")
    config = layout.configuration(told, source)
    mask = whole_number(told, "mask_token_id", source)
    if mask >= config.vocab_size:
        raise ModelError(f"{source}: mask_token_id is {mask}; allowed: an id within the {config.vocab_size} tokens")
    marks = {"is_causal": False, "mask_token_id": mask, "shifted": layout.shifted}
    marks |= {"bos_token_id": None, "pad_token_id": None, "eos_token_id": whole_number(told, "eos_token_id", source)}
    config.update(marks)
    return config


def convert(layout, output, *, folder=None, repo=None, revision=None, files=None, **where):
    """Turn a checkpoint and its tokenizer into a model folder.

    It is in a local `folder`, or in a hub repository at a pinned revision, with the SHA-256 of each of its `files`.
    """
    folder = folder or hub.folder(repo, revision, files, **where)
    net = load(layout, folder, device="cpu", dtype=None)
    reader = tokens.read_pretrained(folder, net.config.eos_token_id)
    mask, size = network.mask_id(net), net.config.vocab_size
    # Embeddings are padded to a round number, so that the tokenizer may have fewer.
    if len(reader) > size:
        raise ModelError(f"{folder}/tokenizer.json has {len(reader)} tokens, but the network {size}; it is another's")
    if mask not in reader.added_tokens_decoder:
        raise ModelError(
            f"{folder}/tokenizer.json has no special token {mask}, though mask_token_id says so; it is another's"
        )
    network.save(net, reader, output)


def whole_number(told, key, source):
    """The value of a key that a configuration (a dict, from the file `source`) has to have."""
    value = told.get(key)
    if type(value) is not int or value < 0:
        raise ModelError(f"{source}: {key} is {value!r}; allowed: a whole number from 0 up")
    return value
