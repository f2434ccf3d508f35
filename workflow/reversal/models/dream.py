"""Dream's published checkpoints: transformers' Qwen2, attention in both directions.

Dream began as an autoregressive network and still predicts a token at the position before it. The mask token is one of
the vocabulary; queries, keys and values have biases. No code of the checkpoint is run.
"""

from transformers import Qwen2Config, Qwen2ForCausalLM

from . import layouts
from .layouts import Layout, whole_number

# What a configuration has to say, where it says it, for a Qwen2 to compute the same.
REQUIRED = {
    "model_type": "Dream",
    "hidden_act": "silu",
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
}


def configuration(told, source):
    """The Qwen2 configuration that a Dream's own (a dict, from the file `source`) amounts to."""
    heads = whole_number(told, "num_attention_heads", source)
    return Qwen2Config(
        vocab_size=whole_number(told, "vocab_size", source),
        hidden_size=whole_number(told, "hidden_size", source),
        intermediate_size=whole_number(told, "intermediate_size", source),
        num_hidden_layers=whole_number(told, "num_hidden_layers", source),
        num_attention_heads=heads,
        num_key_value_heads=told.get("num_key_value_heads") or heads,
        max_position_embeddings=told.get("max_position_embeddings", 131072),
        rms_norm_eps=told.get("rms_norm_eps", 1e-6),
        rope_parameters={"rope_type": "default", "rope_theta": told.get("rope_theta", 10000.0)},
        tie_word_embeddings=False,
    )


LAYOUT = Layout("Dream", Qwen2ForCausalLM, REQUIRED, configuration, rename=str, shifted=True)


def load(folder, device="cpu", dtype=None):
    """The network of a Dream checkpoint in a folder, as the file has it or in another `dtype`."""
    return layouts.load(LAYOUT, folder, device=device, dtype=dtype)


def convert(output, **source):
    """Turn a Dream checkpoint and its tokenizer into a model folder; `source` as in `layouts.convert`."""
    layouts.convert(LAYOUT, output, **source)
