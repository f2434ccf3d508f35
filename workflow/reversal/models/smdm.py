"""SMDM's published checkpoints: tensors with lit-gpt's names, read into transformers' Llama."""

import re
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from . import hub, network, shards, tokens
from .folders import ModelError

# {lit-gpt's name of a tensor of a block: Llama's}. The fused attention tensor is split into three.
BLOCK_NAMES = {
    "norm_1.weight": "input_layernorm.weight",
    "attn.proj.weight": "self_attn.o_proj.weight",
    "norm_2.weight": "post_attention_layernorm.weight",
    "mlp.swiglu.w1.weight": "mlp.gate_proj.weight",
    "mlp.swiglu.w2.weight": "mlp.up_proj.weight",
    "mlp.swiglu.w3.weight": "mlp.down_proj.weight",
}
FUSED = "attn.attn.weight"
TOP_NAMES = {
    "transformer.wte.weight": "model.embed_tokens.weight",
    "transformer.ln_f.weight": "model.norm.weight",
    "lm_head.weight": "lm_head.weight",
}


def load(
    weights: str | Path, config: dict, *, causal: bool, device="cpu", dtype: torch.dtype = torch.float32
) -> LlamaForCausalLM:
    """Load the network of a safetensors file with lit-gpt's tensor names.

    `config` has what the tensors cannot show: `n_head`, and optionally `norm_eps`, `block_size` and `eos_token_id`.
    Width, depth, MLP and vocabulary are read from the tensors. Each tensor is copied from the file directly into the
    network, so a model is held in memory once.
    """
    weights = Path(weights)
    with shards.open_safetensors(weights) as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        shape = infer_shape(shapes, heads=config["n_head"], causal=causal, source=weights)
        with torch.device("meta"):
            net = LlamaForCausalLM(
                network.configuration(
                    causal=causal,
                    eps=config.get("norm_eps", 1e-5),
                    context=config.get("block_size", 2048),
                    eos=config.get("eos_token_id", 2),
                    rounded_rope=True,
                    **shape,
                )
            )
        net = net.to(dtype).to_empty(device=device)
        _copy_weights(net, file, heads=shape["heads"])
    net.model.rotary_emb = network.RoundedRotaryEmbedding(net.config).to(device)
    return net.eval()


def convert(output, *, causal, weights, tokenizer, n_head, eos_token="</s>", norm_eps=1e-5, block_size=2048, **where):
    """Turn an SMDM checkpoint and its tokenizer into a model folder.

    `weights` and `tokenizer` are each a {path} here or a {repo, revision, file, sha256} on the hub.
    """
    reader = tokens.read_tokenizer(hub.locate(tokenizer, where), eos_token)
    config = {"n_head": n_head, "norm_eps": norm_eps, "block_size": block_size, "eos_token_id": reader.eos_token_id}
    net = load(hub.locate(weights, where), config, causal=causal)
    if network.vocab(net) != len(reader):
        raise ModelError(
            f"{hub.describe(tokenizer)} has {len(reader)} tokens, but {hub.describe(weights)} {network.vocab(net)}; "
            "a checkpoint needs the tokenizer it was trained with"
        )
    network.save(net, reader, output)


def infer_shape(shapes, *, heads, causal, source):
    """Infer vocabulary, width, depth, heads and MLP size from the tensors' `shapes`, and check them all."""
    blocks = {int(match[1]) for name in shapes if (match := re.match(r"transformer\.h\.(\d+)\.", name))}
    layers = max(blocks, default=-1) + 1
    required = ("transformer.wte.weight", "lm_head.weight", "transformer.h.0.mlp.swiglu.w1.weight")
    for name in required:
        if len(shapes.get(name, ())) != 2:
            raise ModelError(f"{source}: tensor {name} is missing or not a matrix; is this an SMDM checkpoint?")
    vocab, width = shapes["lm_head.weight"]
    inner = shapes["transformer.h.0.mlp.swiglu.w1.weight"][0]
    if width % heads:
        raise ModelError(f"{source}: width {width} is not a multiple of n_head {heads}")
    expected = expected_shapes(vocab, width, inner, layers, causal)
    for name, shape in expected.items():
        if name not in shapes:
            raise ModelError(f"{source}: tensor {name} is missing")
        if shapes[name] != shape:
            hint = _family_hint(name, shapes[name], vocab, causal)
            raise ModelError(f"{source}: tensor {name} has shape {shapes[name]}, expected {shape}{hint}")
    for name in shapes.keys() - expected.keys():
        raise ModelError(f"{source}: tensor {name} is not part of an SMDM network of {layers} blocks")
    return {"vocab": vocab, "width": width, "layers": layers, "heads": heads, "mlp": inner}


def expected_shapes(vocab, width, mlp, layers, causal):
    """{name: shape} of every tensor of such a checkpoint."""
    shapes = {
        "transformer.wte.weight": (vocab if causal else vocab + 1, width),
        "transformer.ln_f.weight": (width,),
        "lm_head.weight": (vocab, width),
    }
    for i in range(layers):
        block = f"transformer.h.{i}."
        shapes |= {
            block + "norm_1.weight": (width,),
            block + FUSED: (3 * width, width),
            block + "attn.proj.weight": (width, width),
            block + "norm_2.weight": (width,),
            block + "mlp.swiglu.w1.weight": (mlp, width),
            block + "mlp.swiglu.w2.weight": (mlp, width),
            block + "mlp.swiglu.w3.weight": (width, mlp),
        }
    return shapes


def _family_hint(name, shape, vocab, causal):
    if name != "transformer.wte.weight":
        return ""
    if causal and shape[0] == vocab + 1:
        return "; the extra row is a mask token: this is a diffusion checkpoint"
    if not causal and shape[0] == vocab:
        return "; there is no row for the mask token: this is an autoregressive checkpoint"
    return ""


@torch.no_grad()
def _copy_weights(net, file, *, heads):
    parameters = dict(net.named_parameters())
    parameters["lm_head.weight"].zero_()  # the mask's row has no counterpart in the file
    for theirs, ours in TOP_NAMES.items():
        tensor = file.get_tensor(theirs)
        parameters[ours][: len(tensor)].copy_(tensor)
    for i in range(net.config.num_hidden_layers):
        for theirs, ours in BLOCK_NAMES.items():
            parameters[f"model.layers.{i}.{ours}"].copy_(file.get_tensor(f"transformer.h.{i}.{theirs}"))
        # The rows are q, k, v of head 0, then q, k, v of head 1, …
        fused = file.get_tensor(f"transformer.h.{i}.{FUSED}")
        width = fused.shape[1]
        parts = fused.view(heads, 3, width // heads, width).unbind(1)
        for part, projection in zip(parts, ("q_proj", "k_proj", "v_proj"), strict=True):
            parameters[f"model.layers.{i}.self_attn.{projection}.weight"].copy_(part.reshape(width, width))
