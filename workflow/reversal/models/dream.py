"""Dream's published checkpoints: transformers' Qwen2, attention in both directions.

Dream began as an autoregressive network and still predicts a token at the position before it. The mask token is one of
the vocabulary; queries, keys and values have biases. No code of the checkpoint is run.
"""

from transformers import Qwen2ForCausalLM

from .layouts import Layout

# What a configuration has to say, where it says it, for a Qwen2 to compute the same.
REQUIRED = {
    "model_type": "Dream",
    "hidden_act": "silu",
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "quantization_config": None,
}


LAYOUT = Layout("Dream", Qwen2ForCausalLM, REQUIRED, keys={}, context=131072, eps=1e-6, rename=str, shifted=True)
load, convert = LAYOUT.load, LAYOUT.convert
