"""The shapes of published networks, which benchmarks fill with random weights."""

import torch

from reversal.models.layouts import find_layout

SMDM_1028M = {"vocab": 32000, "width": 1792, "layers": 20, "heads": 14, "mlp": 7168}  # AR-1028M's too
# {base: the part of the published config.json that gives the shape}
PUBLISHED = {
    "llada": {
        "model_type": "llada",
        "d_model": 4096,
        "n_heads": 32,
        "n_kv_heads": 32,
        "n_layers": 32,
        "mlp_hidden_size": 12288,
        "vocab_size": 126464,
        "embedding_size": 126464,
        "max_sequence_length": 4096,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "mask_token_id": 126336,
        "eos_token_id": 126081,
    },
    "dream": {
        "model_type": "Dream",
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "num_hidden_layers": 28,
        "intermediate_size": 18944,
        "vocab_size": 152064,
        "max_position_embeddings": 131072,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
        "mask_token_id": 151666,
        "eos_token_id": 151643,
    },
}


def published_network(name, device):
    """A network of LLaDA-8B's or Dream-7B's shape with random bfloat16 weights, in eval mode."""
    layout = find_layout(PUBLISHED[name], name)
    config = layout.configuration(PUBLISHED[name], name)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            torch.manual_seed(0)
            net = layout.kind(config)
    finally:
        torch.set_default_dtype(before)
    net.model.rotary_emb = type(net.model.rotary_emb)(config).to(device)  # its tables are float32
    return net.eval()
