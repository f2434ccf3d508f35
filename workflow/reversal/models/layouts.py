"""Checkpoints of published diffusion models in Hugging Face layout: what LLaDA and Dream have in common."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from . import folders, hub, network, shards, tokens
from .folders import ModelError

SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


class Layout(NamedTuple):
    """How the checkpoints of one kind of model are read."""

    name: str
    kind: Any  # the transformers class that computes the same
    required: dict  # what their configuration has to say
    keys: dict  # {transformers' name of a size: theirs}, where they differ
    context: int  # tokens, where their configuration does not say
    eps: float  # of the norms, likewise
    rename: Callable  # from our names of parameters to theirs
    shifted: bool  # whether a token is predicted at the position before it

    def load(self, folder, device="cpu", dtype=None):
        """The network of a checkpoint, config.json and safetensors, as they have it or in another `dtype`."""
        source = Path(folder) / "config.json"
        if not source.is_file():
            raise ModelError(f"{source}: no such file; a checkpoint has config.json, *.safetensors and a tokenizer")
        config = self.configuration(folders.read_json(source), source)
        return shards.network_of(self.kind, config, folder, rename=self.rename, device=device, dtype=dtype)

    def configuration(self, told, source):
        """The transformers configuration of a network, from a checkpoint's own (a dict, from a file `source`)."""
        for key, wanted in self.required.items():
            # A configuration leaves out what its own code has for a default; but it says whose it is.
            if (given := told.get(key, None if key == "model_type" else wanted)) != wanted:
                raise ModelError(f"{source}: {key} is {given!r}; allowed for a {self.name}: {wanted!r}")
        names = {key: self.keys.get(key, key) for key in (*SIZES, "num_key_value_heads", "max_position_embeddings")}
        sizes = {key: whole_number(told, names[key], source) for key in SIZES}
        width, heads = sizes["hidden_size"], sizes["num_attention_heads"]
        if not heads or width % heads:
            raise ModelError(f"{source}: {names['num_attention_heads']} is {heads}; allowed: a divisor of {width}")
        theta = told.get("rope_theta")
        if type(theta) not in (int, float) or theta <= 0:  # a guess would be wrong without a word
            raise ModelError(f"{source}: rope_theta is {theta!r}; allowed: a number above 0")
        config = self.kind.config_class(
            **sizes,
            vocab_size=whole_number(told, "embedding_size" if told.get("embedding_size") else "vocab_size", source),
            num_key_value_heads=told.get(names["num_key_value_heads"]) or sizes["num_attention_heads"],
            max_position_embeddings=told.get(names["max_position_embeddings"], self.context),
            rms_norm_eps=told.get("rms_norm_eps", self.eps),
            rope_parameters={"rope_type": "default", "rope_theta": theta},
            tie_word_embeddings=False,
        )
        mask = whole_number(told, "mask_token_id", source)
        if mask >= config.vocab_size:
            raise ModelError(f"{source}: mask_token_id is {mask}; allowed: an id within the {config.vocab_size} tokens")
        marks = {"is_causal": False, "mask_token_id": mask, "shifted": self.shifted}
        end = whole_number(told, "eos_token_id", source)
        if end == mask:
            raise ModelError(f"{source}: mask_token_id is {mask}; allowed: another id than eos_token_id")
        config.update(marks | {"bos_token_id": None, "pad_token_id": None, "eos_token_id": end})
        return config

    def convert(self, output, *, folder=None, repo=None, revision=None, files=None, **where):
        """Turn a checkpoint and its tokenizer into a model folder.

        It is in a local `folder`, or in a hub repository at a pinned revision, with the SHA-256 of each of its `files`.
        """
        folder = folder or hub.folder(repo, revision, files, **where)
        net = self.load(folder)
        reader = tokens.read_pretrained(folder, net.config.eos_token_id)
        mask, size = network.mask_id(net), net.config.vocab_size
        # Embeddings are padded to a round number, so that the tokenizer may have fewer.
        file = f"{folder}/tokenizer.json"
        if len(reader) > size:
            raise ModelError(f"{file} has {len(reader)} tokens, but the network {size}; it is another's")
        if mask not in reader.added_tokens_decoder:
            raise ModelError(f"{file} has no special token {mask}, though mask_token_id says so; it is another's")
        network.save(net, reader, output)


def whole_number(told, key, source):
    """The value of a key that a configuration (a dict, from the file `source`) has to have."""
    value = told.get(key)
    if type(value) is not int or value < 0:
        raise ModelError(f"{source}: {key} is {value!r}; allowed: a whole number from 0 up")
    return value
