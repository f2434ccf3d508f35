"""Published diffusion checkpoints in Hugging Face layout, LLaDA's and Dream's, read into networks of transformers.

A `Layout` states which transformers class computes the same as the checkpoint's own code, how the configuration's keys
and the tensors' names translate, and which values the configuration has to have for that. LLaDA is a Llama with
attention in both directions that predicts a token at its own position. Dream is such a Qwen2; it began as an
autoregressive network and still predicts a token at the position before it. In both, the mask token is part of the
vocabulary. No code of a checkpoint is run.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM

from . import folders, hub, network, shards, tokens
from .folders import ModelError

SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
OTHER_KEYS = ("num_key_value_heads", "max_position_embeddings", "vocab_size", "rope_theta", "rms_norm_eps")
OTHER_KEYS += ("mask_token_id", "eos_token_id")


class Layout(NamedTuple):
    """How the checkpoints of one kind of model are read."""

    name: str
    kind: Any  # the transformers class that computes the same
    required: dict  # {key: value} that the checkpoint's configuration has to have, where it has the key
    keys: dict  # {transformers' name of a key: the checkpoint's}, where they differ
    context: int  # tokens, if the configuration has no such key
    eps: float  # of the norms, if the configuration has no such key
    rename: Callable  # from our name of a parameter to the checkpoint's
    shifted: bool  # whether a token is predicted at the position before it

    def configuration(self, original, source):
        """Translate a checkpoint's configuration (`original`, a dict from the file `source`) into transformers'."""
        for key, wanted in self.required.items():
            # A configuration may leave out what its own code has as a default.
            if (value := original.get(key, wanted)) != wanted:
                raise ModelError(f"{source}: {key} is {value!r}; allowed for a {self.name}: {wanted!r}")
        names = {key: self.keys.get(key, key) for key in (*SIZES, *OTHER_KEYS)}
        sizes = {key: _whole_number(original, names[key], source) for key in SIZES}
        width, heads = sizes["hidden_size"], sizes["num_attention_heads"]
        if not heads or width % heads:
            raise ModelError(f"{source}: {names['num_attention_heads']} is {heads}; allowed: a divisor of {width}")
        theta = original.get(names["rope_theta"])
        if type(theta) not in (int, float) or theta <= 0:  # a wrong guess would go unnoticed
            raise ModelError(f"{source}: {names['rope_theta']} is {theta!r}; allowed: a number above 0")
        rows = "embedding_size" if original.get("embedding_size") else names["vocab_size"]
        config = self.kind.config_class(
            **sizes,
            vocab_size=_whole_number(original, rows, source),
            num_key_value_heads=original.get(names["num_key_value_heads"]) or sizes["num_attention_heads"],
            max_position_embeddings=original.get(names["max_position_embeddings"], self.context),
            rms_norm_eps=original.get(names["rms_norm_eps"], self.eps),
            rope_parameters={"rope_type": "default", "rope_theta": theta},
            tie_word_embeddings=False,
        )
        mask, eos = (_whole_number(original, names[key], source) for key in ("mask_token_id", "eos_token_id"))
        if mask >= config.vocab_size or mask == eos:
            raise ModelError(
                f"{source}: {names['mask_token_id']} is {mask}; allowed: an id within the {config.vocab_size} tokens, "
                f"another than {names['eos_token_id']}"
            )
        diffusion = {"is_causal": False, "mask_token_id": mask, "shifted": self.shifted}
        config.update(diffusion | {"bos_token_id": None, "pad_token_id": None, "eos_token_id": eos})
        return config


def _whole_number(config, key, source):
    """The whole number that `config` (a dict from the file `source`) has to have under a key."""
    value = config.get(key)
    if type(value) is not int or value < 0:
        raise ModelError(f"{source}: {key} is {value!r}; allowed: a whole number from 0 up")
    return value


# {Llama's name of a module: LLaDA's}
LLADA_BLOCK_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "attn_out",
    "post_attention_layernorm": "ff_norm",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
}
LLADA_TOP_NAMES = {"model.embed_tokens": "wte", "model.norm": "ln_f", "lm_head": "ff_out"}


def _llada_name(name):
    """LLaDA's name of a Llama's parameter."""
    module, _, part = name.rpartition(".")
    if module in LLADA_TOP_NAMES:
        return f"model.transformer.{LLADA_TOP_NAMES[module]}.{part}"
    _, _, number, inner = module.split(".", 3)
    return f"model.transformer.blocks.{number}.{LLADA_BLOCK_NAMES[inner]}.{part}"


LLADA = Layout(
    "LLaDA",
    LlamaForCausalLM,
    required={
        "block_type": "llama",
        "activation_type": "silu",
        "layer_norm_type": "rms",
        "rope": True,
        "alibi": False,
        "include_bias": False,
        "include_qkv_bias": False,
        "attention_layer_norm": False,
        "input_emb_norm": False,
        "scale_logits": False,
        "weight_tying": False,
        "quantization_config": None,
    },
    keys={
        "hidden_size": "d_model",
        "intermediate_size": "mlp_hidden_size",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "num_key_value_heads": "n_kv_heads",
        "max_position_embeddings": "max_sequence_length",
    },
    context=4096,
    eps=1e-5,
    rename=_llada_name,
    shifted=False,
)
DREAM = Layout(
    "Dream",
    Qwen2ForCausalLM,
    required={
        "hidden_act": "silu",
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "quantization_config": None,
    },
    keys={},
    context=131072,
    eps=1e-6,
    rename=str,
    shifted=True,
)
LAYOUTS = {"llada": LLADA, "Dream": DREAM}  # by the model_type of a checkpoint's configuration


def find_layout(config, source):
    """The `Layout` of a checkpoint with a configuration (a dict from the file `source`)."""
    if config.get("model_type") not in LAYOUTS:
        allowed = ", ".join(LAYOUTS)
        raise ModelError(f"{source}: model_type is {config.get('model_type')!r}; allowed for a checkpoint: {allowed}")
    return LAYOUTS[config["model_type"]]


def load(folder: str | Path, device="cpu", dtype: torch.dtype | None = None) -> PreTrainedModel:
    """Load the network of a checkpoint (config.json and safetensors), in its own `dtype` or in another."""
    source = Path(folder) / "config.json"
    if not source.is_file():
        raise ModelError(f"{source}: no such file; a checkpoint has config.json, *.safetensors and a tokenizer")
    original = folders.read_json(source)
    layout = find_layout(original, source)
    config = layout.configuration(original, source)
    return shards.load_network(layout.kind, config, folder, rename=layout.rename, device=device, dtype=dtype)


def convert(output, *, folder=None, repo=None, revision=None, files=None, **where):
    """Turn a checkpoint and its tokenizer into a model folder.

    The checkpoint is in a local `folder`, or in a hub repository at a pinned revision, with the SHA-256 of each of its
    `files`.
    """
    folder = Path(folder or hub.fetch_folder(repo, revision, files, **where))
    net = load(folder)
    tokenizer = tokens.read_checkpoint_tokenizer(folder, net.config.eos_token_id)
    mask, size = network.mask_id(net), net.config.vocab_size
    # Embeddings are padded to a round number of rows, so the tokenizer may have fewer tokens.
    file = folder / "tokenizer.json"
    if len(tokenizer) > size:
        raise ModelError(f"{file} has {len(tokenizer)} tokens, but the network {size}; it is another's")
    if mask not in tokenizer.added_tokens_decoder:
        raise ModelError(f"{file} has no special token {mask}, the network's mask; it is another's")
    network.save(net, tokenizer, output)
