"""What a network is: causal (autoregressive) or bidirectional (masked diffusion), its mask, where predictions are read.

A diffusion network is one of transformers' causal LMs whose configuration says `is_causal: false` and which token is
the mask. In networks made here, and SMDM's, it is one id past the last real one: embedding and head have one row more
than the tokenizer. In LLaDA and Dream it is a token of the vocabulary. It is embedded but never predicted, so every
prediction goes through `logits`.

The prediction of a token is read at that token; but, where the configuration says `shifted: true` (Dream), at the one
before it, as in an autoregressive network: `read_at` and `predictions` know.
"""

import copy
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from . import folders
from .folders import ModelError


class RoundedRotaryEmbedding(LlamaRotaryEmbedding):
    """RoPE whose tables are rounded to bfloat16: SMDM was trained so, whatever the precision of the rest."""

    def forward(self, x, position_ids):
        """Cosines and sines (1, T, head) in the type of `x`, with bfloat16's precision."""
        cos, sin = super().forward(x.float(), position_ids)
        return cos.bfloat16().to(x.dtype), sin.bfloat16().to(x.dtype)


class TimeEmbedding(nn.Module):
    """Embeds times (…,) as vectors (…, D): sines and cosines of them through two layers. Silent when new."""

    def __init__(self, width):
        super().__init__()
        self.into, self.out = nn.Linear(32, width), nn.Linear(width, width)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, times):
        """Nothing is told of a token whose time is infinite."""
        told = times.isfinite()
        frequencies = torch.logspace(-1, 1.5, 16, device=times.device)
        angles = times.masked_fill(~told, 0)[..., None] * frequencies
        states = self.out(nn.functional.silu(self.into(torch.cat([angles.sin(), angles.cos()], -1))))
        return states * told[..., None]


class TimeConditionedLlama(LlamaForCausalLM):
    """A Llama that is told the time: its clock's vectors are added to the embeddings."""

    def __init__(self, config):
        super().__init__(config)
        self.clock = TimeEmbedding(config.hidden_size)


def configuration(
    *, causal, vocab, width, layers, heads, mlp, context=2048, eos=0, eps=1e-5, rounded_rope=False, **objective
):
    """The Llama configuration of a network over `vocab` real tokens; of its `objective`, how it is noised and timed."""
    return LlamaConfig(
        vocab_size=vocab if causal else vocab + 1,
        hidden_size=width,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=context,
        rms_norm_eps=eps,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=None,
        is_causal=causal,
        mask_token_id=None if causal else vocab,
        rounded_rope=rounded_rope,
        **objective,
    )


def new(*, seed, **shape):
    """A network with random weights; `shape` as in `configuration`."""
    config = configuration(**shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = (TimeConditionedLlama if _timed(config) else LlamaForCausalLM)(config)
    return _finish(net)


def _timed(config):
    return getattr(config, "time_conditioning", "none") == "embedded"


def add_time_embedding(net, *, seed):
    """The same network, told the time: at first its new clock is silent."""
    config = copy.deepcopy(net.config)
    config.time_conditioning = "embedded"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        timed = TimeConditionedLlama(config)
    timed.load_state_dict(net.state_dict(), strict=False)
    return _finish(timed).to(net.get_input_embeddings().weight.device)


def _finish(net):
    if getattr(net.config, "rounded_rope", False):
        net.model.rotary_emb = RoundedRotaryEmbedding(net.config)
    return net.eval()


def default_device():
    """The GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def is_diffusion(net):
    """Whether the network denoises masked canvases (or else predicts the next token)."""
    return getattr(net.config, "mask_token_id", None) is not None


def vocab(net):
    """How many ids predictions range over: all, but for a mask that is one past the last real token."""
    size = net.config.vocab_size
    return size - 1 if is_diffusion(net) and mask_id(net) == size - 1 else size


def mask_id(net):
    """The id of the mask token."""
    return net.config.mask_token_id


def read_at(net, position):
    """Where the prediction of the token at a `position`, or at each of a tensor of them, is read.

    The first token of a shifted network is read at itself; an autoregressive network predicts none.
    """
    if is_diffusion(net) and not getattr(net.config, "shifted", False):
        return position
    return (position - 1).clamp(min=0) if isinstance(position, torch.Tensor) else max(position - 1, 0)


def noise(net):
    """How the tokens of a diffusion network are noised: "mask", "uniform" or "gaussian"."""
    return getattr(net.config, "noise", "mask")


def is_time_conditioned(net):
    """Whether the network is told the time."""
    return _timed(net.config)


def hidden(net, ids, attention_mask=None, *, times=None, noise=None):
    """The states (B, T, D) after the final norm, for `ids` (B, T).

    A network with a clock is told the `times` (B, T), of masks by default the share of them; one that denoises
    embeddings is given `noise` (B, T, D) to add to them, as much as the times say.
    """
    if not is_time_conditioned(net):
        return net.base_model(input_ids=ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
    if times is None:
        real = torch.ones_like(ids) if attention_mask is None else attention_mask
        share = ((ids == mask_id(net)) & (real > 0)).sum(1, keepdim=True) / real.sum(1, keepdim=True)
        times = share.expand(ids.shape)
    embedded = net.get_input_embeddings()(ids) if noise is None else noised(normalised(net, ids), times, noise)
    return hidden_of(net, embedded, times, attention_mask)


def hidden_of(net, embedded, times, attention_mask=None):
    """The same for embeddings (B, T, D) at `times` (B, T)."""
    timed = embedded + net.clock(times)
    return net.base_model(inputs_embeds=timed, attention_mask=attention_mask, use_cache=False).last_hidden_state


def normalised(net, ids):
    """Embeddings (…, D) of `ids` with a mean square of 1, the scale of noise."""
    embedded = net.get_input_embeddings()(ids)
    return embedded * embedded.square().mean(-1, keepdim=True).add(1e-8).rsqrt()


def noised(embedded, log_snr, noise):
    """Embeddings (…, D) with as much noise as the log of signal over noise (…,) says: none where it is infinite."""
    signal = log_snr.sigmoid()[..., None]
    return signal.sqrt() * embedded + (1 - signal).sqrt() * noise


def predictions(net, ids, attention_mask=None, **told):
    """The states (B, T, D) after the final norm at which each token of `ids` (B, T) is predicted."""
    states = hidden(net, ids, attention_mask, **told)
    return states if read_at(net, 1) == 1 else torch.cat([states[:, :1], states[:, :-1]], dim=1)


def logits(net, states):
    """Logits (..., V) for states (..., D) after the final norm; that of a mask is too low to be ever predicted."""
    head = net.get_output_embeddings()
    bias = None if head.bias is None else head.bias[: vocab(net)]
    return without_mask(net, nn.functional.linear(states, head.weight[: vocab(net)], bias))


def without_mask(net, logits):
    """`logits` (..., V), in place, with the least number there is for a mask within the vocabulary."""
    if is_diffusion(net) and mask_id(net) < logits.shape[-1]:
        logits[..., mask_id(net)] = torch.finfo(logits.dtype).min  # not −∞: guidance takes differences
    return logits


def layers(net):
    """The decoder blocks, first to last."""
    depth = net.config.num_hidden_layers
    for module in net.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth:
            return list(module)
    raise ModelError(f"{type(net).__name__} has no list of {depth} decoder blocks to trace")


def _child(block, *names):
    for name in names:
        if hasattr(block, name):
            return getattr(block, name)
    raise ModelError(f"{type(block).__name__} has none of {', '.join(names)}")


def attention(block):
    """The attention module of a block."""
    return _child(block, "self_attn", "attn", "attention", "self_attention")


def mlp(block):
    """The MLP module of a block."""
    return _child(block, "mlp", "feed_forward", "ffn")


def down_projection(block):
    """The matrix that leads out of a block's MLP; its input is a ROME key, its output a ROME value."""
    return _child(mlp(block), "down_proj", "c_proj", "dense_4h_to_h", "fc2", "fc_out", "w2")


def parameter_count(net):
    """Parameters, the unused row of the head of a mask past the vocabulary not counted."""
    unused = net.config.vocab_size - vocab(net)
    return sum(p.numel() for p in net.parameters()) - unused * net.config.hidden_size


def save(net, tokenizer, path):
    """Write Hugging Face layout (config, safetensors, tokenizer) with checksums to the folder `path`, or nothing."""
    with folders.whole(path) as draft:
        net.save_pretrained(draft)
        if tokenizer is not None:
            tokenizer.save_pretrained(draft)


def load(path, device=None, dtype=None):
    """The network (eval mode) and its tokenizer from a folder in Hugging Face layout; only safetensors are read.

    Without a `dtype`, weights stored in bfloat16 stay so on a GPU, where a large network needs the room, and others
    become float32; "auto" is as they are stored.
    """
    path, device = Path(path), torch.device(device or default_device())
    folders.verify(path)
    kind = folders.read_json(path / "config.json").get("model_type")
    if kind not in CONFIG_MAPPING:
        raise ModelError(
            f"{path / 'config.json'}: model_type is {kind!r}; allowed: one that transformers knows, "
            "since a checkpoint's own code is never run"
        )
    here = {"local_files_only": True, "trust_remote_code": False}
    with _told(path / "*.safetensors"):
        config = AutoConfig.from_pretrained(path, **here)
        stays = device.type == "cuda" and config.dtype == torch.bfloat16
        net, found = (TimeConditionedLlama if _timed(config) else AutoModelForCausalLM).from_pretrained(
            path,
            config=config,
            dtype=dtype or (torch.bfloat16 if stays else torch.float32),
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **here,
        )
    for name in sorted(found["missing_keys"]):
        raise ModelError(f"{path / '*.safetensors'}: {name} is missing")
    for name, given, expected in sorted(found["mismatched_keys"]):
        raise ModelError(f"{path / '*.safetensors'}: {name} has shape {tuple(given)}, expected {tuple(expected)}")
    tokenizer = None
    if (path / "tokenizer.json").is_file():
        with _told(path / "tokenizer.json"):
            tokenizer = PreTrainedTokenizerFast.from_pretrained(path, **here)
    return _finish(net).to(device), tokenizer


@contextmanager
def _told(file):
    """What a library makes of a file that it can not read, as one line; it raises errors of many kinds."""
    try:
        yield
    except Exception as error:
        raise ModelError(f"{file} can not be read: {type(error).__name__}: {' '.join(str(error).split())}") from error
