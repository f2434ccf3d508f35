"""LLaDA's published checkpoints: its tensor names in, transformers' Llama out, with attention in both directions.

The mask token is one of the vocabulary, and a token is predicted where it stands. No code of the checkpoint is run.
"""

from transformers import LlamaForCausalLM

from .layouts import Layout

# LLaDA's name of each module, and ours.
BLOCK_NAMES = {
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
TOP_NAMES = {"model.embed_tokens": "wte", "model.norm": "ln_f", "lm_head": "ff_out"}
# What a configuration has to say, where it says it, for a Llama to compute the same.
REQUIRED = {
    "model_type": "llada",
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
}
# LLaDA's name of each size.
KEYS = {
    "hidden_size": "d_model",
    "intermediate_size": "mlp_hidden_size",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "max_position_embeddings": "max_sequence_length",
}


def rename(name):
    """A parameter of our Llama as LLaDA calls it."""
    module, _, part = name.rpartition(".")
    if module in TOP_NAMES:
        return f"model.transformer.{TOP_NAMES[module]}.{part}"
    _, _, number, inner = module.split(".", 3)
    return f"model.transformer.blocks.{number}.{BLOCK_NAMES[inner]}.{part}"


LAYOUT = Layout("LLaDA", LlamaForCausalLM, REQUIRED, KEYS, context=4096, eps=1e-5, rename=rename, shifted=False)
load, convert = LAYOUT.load, LAYOUT.convert
