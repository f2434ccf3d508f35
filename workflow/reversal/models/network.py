"""Networks of both families: their mask token, their predictions, their modules, and how they are loaded and saved.

A diffusion network is one of transformers' causal LMs whose configuration has `is_causal: false` and the id of a mask
token. In networks made here, and SMDM's, that id is one past the last real one: embedding and head have one row more
than the tokenizer. In LLaDA and Dream the mask is a token of the vocabulary. It is embedded but never predicted, so
every prediction goes through `logits`.

A diffusion network predicts a token at the token's own position, unless its configuration has `shifted: true` (Dream):
then at the position before it, as an autoregressive network does. `prediction_position` and `prediction_states` handle
both.
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
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from . import folders
from .folders import ModelError
from .store import StoreLlama


class RoundedRotaryEmbedding(LlamaRotaryEmbedding):
    """RoPE with tables rounded to bfloat16, as SMDM was trained, whatever the precision of the rest."""

    def forward(self, x, position_ids):
        """Cosines and sines (1, T, head) in the dtype of `x`, with bfloat16's precision."""
        cos, sin = super().forward(x.float(), position_ids)
        return cos.bfloat16().to(x.dtype), sin.bfloat16().to(x.dtype)


class NoRotation(nn.Module):
    """In place of RoPE: cosines of 1 and sines of 0 (1, T, head), which rotate nothing."""

    def __init__(self, config):
        super().__init__()
        self.width = config.hidden_size // config.num_attention_heads

    def forward(self, x, position_ids):
        """The tables in the dtype of `x` (B, T, D)."""
        ones = x.new_ones(1, x.shape[1], self.width)
        return ones, torch.zeros_like(ones)


class PositionedEmbedding(nn.Embedding):
    """Token embeddings with a learned embedding of the position added, counted from the start of the row."""

    def __init__(self, tokens, width, context, std):
        super().__init__(tokens, width)
        self.positions = nn.Parameter(torch.empty(context, width))
        for table in (self.weight, self.positions):
            nn.init.normal_(table, std=std)

    def forward(self, ids):
        """The embeddings (B, T, D) of `ids` (B, T)."""
        return super().forward(ids) + self.positions[: ids.shape[1]]


class AbsoluteLlama(LlamaForCausalLM):
    """A Llama with learned absolute positions in place of RoPE."""

    def __init__(self, config):
        super().__init__(config)
        sizes = config.vocab_size, config.hidden_size, config.max_position_embeddings
        self.model.embed_tokens = PositionedEmbedding(*sizes, config.initializer_range)


class TimeEmbedding(nn.Module):
    """Embeds times (…,) as vectors (…, D): their sines and cosines through two layers. A new one returns zeros."""

    def __init__(self, width):
        super().__init__()
        self.into, self.out = nn.Linear(32, width), nn.Linear(width, width)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, times):
        """The embeddings (…, D) of `times` (…,), with zeros where the time is infinite: a token without noise."""
        finite = times.isfinite()
        frequencies = torch.logspace(-1, 1.5, 16, device=times.device)
        angles = times.masked_fill(~finite, 0)[..., None] * frequencies
        states = self.out(nn.functional.silu(self.into(torch.cat([angles.sin(), angles.cos()], -1))))
        return states * finite[..., None]


class TimeConditionedLlama(LlamaForCausalLM):
    """A Llama with a time embedding that is added to the embeddings of the tokens."""

    def __init__(self, config):
        super().__init__(config)
        self.time_embedding = TimeEmbedding(config.hidden_size)


def configuration(
    *, causal, vocab, width, layers, heads, mlp, context=2048, eos=0, eps=1e-5, rounded_rope=False, **objective
):
    """The Llama configuration of a network over `vocab` real tokens.

    `objective` has what is not the default of `positions` and of the `noise` and `time_conditioning` that the network
    is made for.
    """
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
        net = _network_class(config, LlamaForCausalLM)(config)
    return _prepare(net)


def _has_time_embedding(config):
    return getattr(config, "time_conditioning", "none") == "embedded"


def _positions(config):
    """What tells a network of this configuration where a token stands: "rotary", "absolute" or "none"."""
    return getattr(config, "positions", "rotary")


def _network_class(config, default):
    """The class of a network that needs one of its own by its configuration, or else the `default`."""
    if _has_time_embedding(config):
        return TimeConditionedLlama
    if getattr(config, "store", None):
        return StoreLlama
    return AbsoluteLlama if _positions(config) == "absolute" else default


def add_time_embedding(net, *, seed):
    """The same network with a time embedding, which is zero until it is trained."""
    return _extend(net, seed, time_conditioning="embedded")


def add_store(net, *, seed, layer, size, matrices, subjects=()):
    """The same network with an empty `store.Store` after the block `layer`."""
    store = {"layer": layer, "size": size, "matrices": list(matrices), "subjects": list(subjects)}
    return _extend(net, seed, store=store)


def _extend(net, seed, **settings):
    """The same network with the further parts that `settings` of its configuration call for, new ones by `seed`."""
    config = copy.deepcopy(net.config)
    config.update(settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        extended = _network_class(config, type(net))(config)
    extended.load_state_dict(net.state_dict(), strict=False)
    return _prepare(extended).to(net.get_input_embeddings().weight.device)


def has_store(net):
    """Whether the network has a store between its blocks, which an engine of its own blocks would leave out."""
    return bool(getattr(net.config, "store", None))


def parts(net):
    """{name: module} of the parts that compute: "attention 0", "mlp 0", …, and the "store" if there is one."""
    modules = {}
    for i, block in enumerate(layers(net)):
        modules |= {f"attention {i}": attention(block), f"mlp {i}": mlp(block)}
    return modules | ({"store": net.store} if has_store(net) else {})


def _prepare(net):
    """The network in eval mode, with rounded RoPE tables, or without RoPE, if its configuration says so."""
    if getattr(net.config, "rounded_rope", False):
        net.model.rotary_emb = RoundedRotaryEmbedding(net.config)
    if _positions(net.config) != "rotary":
        net.model.rotary_emb = NoRotation(net.config)
    return net.eval()


def default_device():
    """The GPU, if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def is_diffusion(net: PreTrainedModel) -> bool:
    """Whether the network denoises masked canvases rather than predicting the next token."""
    return getattr(net.config, "mask_token_id", None) is not None


def vocab(net):
    """Number of ids that can be predicted: `vocab_size`, less the mask if it is the last id."""
    size = net.config.vocab_size
    return size - 1 if is_diffusion(net) and mask_id(net) == size - 1 else size


def mask_id(net: PreTrainedModel) -> int:
    """The id of the mask token."""
    return net.config.mask_token_id


def prediction_position(net, position):
    """The position at which the network predicts the token at `position` (a number, or a tensor of them).

    A shifted network predicts the first token at its own position; an autoregressive one does not predict it.
    """
    if is_diffusion(net) and not getattr(net.config, "shifted", False):
        return position
    return (position - 1).clamp(min=0) if isinstance(position, torch.Tensor) else max(position - 1, 0)


def noise(net):
    """The noise that a diffusion network removes: "mask", "uniform" or "gaussian"."""
    return getattr(net.config, "noise", "mask")


def block_size(net):
    """The tokens of a block of a block diffusion network, or None for an ordinary one."""
    return getattr(net.config, "block_size", None)


def block_attention_mask(size, length, device=None):
    """Which positions (T, T) a position attends to: those of its own block of `size` tokens and of earlier blocks."""
    block = torch.arange(length, device=device) // size
    return block[None, :] <= block[:, None]


def is_time_conditioned(net):
    """Whether the network has a time embedding."""
    return _has_time_embedding(net.config)


def hidden(net, ids, attention_mask=None, *, times=None, noise=None):
    """The states (B, T, D) after the final norm, for `ids` (B, T).

    A time-conditioned network embeds the `times` (B, T), by default the share of masks in each row. One that denoises
    embeddings gets `noise` (B, T, D), added to them at the log signal-to-noise ratios `times`. In a block diffusion
    network a position sees nothing of later blocks.
    """
    if block_size(net) and block_size(net) < ids.shape[1]:
        # Padding needs no mask of its own: it lies to the right, and its own states are never read.
        attention_mask = block_attention_mask(block_size(net), ids.shape[1], ids.device)[None, None]
    if not is_time_conditioned(net):
        return net.base_model(input_ids=ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
    if times is None:
        real = torch.ones_like(ids) if attention_mask is None else attention_mask
        share = ((ids == mask_id(net)) & (real > 0)).sum(1, keepdim=True) / real.sum(1, keepdim=True)
        times = share.expand(ids.shape)
    embedded = (
        net.get_input_embeddings()(ids)
        if noise is None
        else add_gaussian_noise(normalised_embeddings(net, ids), times, noise)
    )
    return hidden_from_embeddings(net, embedded, times, attention_mask)


def hidden_from_embeddings(net, embedded, times, attention_mask=None):
    """The states (B, T, D) after the final norm, for embeddings (B, T, D) at `times` (B, T)."""
    timed = embedded + net.time_embedding(times)
    return net.base_model(inputs_embeds=timed, attention_mask=attention_mask, use_cache=False).last_hidden_state


def normalised_embeddings(net, ids):
    """The embeddings (…, D) of `ids`, scaled to a mean square of 1, that of the noise."""
    embedded = net.get_input_embeddings()(ids)
    return embedded * embedded.square().mean(-1, keepdim=True).add(1e-8).rsqrt()


def add_gaussian_noise(embedded, log_snr, noise):
    """Mix `embedded` and `noise` (…, D) at log signal-to-noise ratios (…,); an infinite one adds no noise."""
    signal = log_snr.sigmoid()[..., None]
    return signal.sqrt() * embedded + (1 - signal).sqrt() * noise


def prediction_states(net, ids, attention_mask=None, **conditions):
    """The states (B, T, D) after the final norm from which each token of `ids` (B, T) is predicted."""
    states = hidden(net, ids, attention_mask, **conditions)
    return states if prediction_position(net, 1) == 1 else torch.cat([states[:, :1], states[:, :-1]], dim=1)


def logits(net, states):
    """Logits (..., V) for states (..., D) after the final norm; that of a mask is the lowest number there is."""
    head = net.get_output_embeddings()
    bias = None if head.bias is None else head.bias[: vocab(net)]
    return suppress_mask(net, nn.functional.linear(states, head.weight[: vocab(net)], bias))


def suppress_mask(net, logits):
    """Set the logit of a mask within the vocabulary to the lowest number there is, in place, in `logits` (..., V)."""
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


def _find_child(block, *names):
    for name in names:
        if hasattr(block, name):
            return getattr(block, name)
    raise ModelError(f"{type(block).__name__} has none of {', '.join(names)}")


def attention(block):
    """The attention module of a block."""
    return _find_child(block, "self_attn", "attn", "attention", "self_attention")


def attention_projection(block):
    """The output matrix of a block's attention; its input are the outputs of the heads, one after the other."""
    return _find_child(attention(block), "o_proj", "c_proj", "dense", "out_proj")


def mlp(block):
    """The MLP module of a block."""
    return _find_child(block, "mlp", "feed_forward", "ffn")


def final_norm(net):
    """The norm between the last block and the head."""
    return _find_child(net.base_model, "norm", "ln_f", "final_layernorm", "final_layer_norm")


def down_projection(block):
    """The output matrix of a block's MLP; its input is a ROME key, its output a ROME value."""
    return _find_child(mlp(block), "down_proj", "c_proj", "dense_4h_to_h", "fc2", "fc_out", "w2")


def parameter_count(net):
    """The number of parameters, without the head's unused row for a mask past the vocabulary."""
    unused = net.config.vocab_size - vocab(net)
    return sum(p.numel() for p in net.parameters()) - unused * net.config.hidden_size


def save(net, tokenizer, path):
    """Write config, safetensors and tokenizer in Hugging Face layout, with checksums, to the folder `path`."""
    with folders.write_atomically(path) as draft:
        net.save_pretrained(draft)
        if tokenizer is not None:
            tokenizer.save_pretrained(draft)


def load(
    path: str | Path, device: torch.device | str | None = None, dtype: torch.dtype | str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast | None]:
    """Load the network (eval mode) and its tokenizer from a folder in Hugging Face layout; only safetensors are read.

    Without a `dtype`, weights stored in bfloat16 stay so on a GPU, where a large network needs the memory, and others
    become float32; "auto" keeps the stored one.
    """
    path, device = Path(path), torch.device(device or default_device())
    folders.verify(path)
    kind = folders.read_json(path / "config.json").get("model_type")
    if kind not in CONFIG_MAPPING:
        raise ModelError(
            f"{path / 'config.json'}: model_type is {kind!r}; allowed: one that transformers knows, "
            "since a checkpoint's own code is never run"
        )
    local = {"local_files_only": True, "trust_remote_code": False}
    with _raising_model_errors(path / "*.safetensors"):
        config = AutoConfig.from_pretrained(path, **local)
        keep_bfloat16 = device.type == "cuda" and config.dtype == torch.bfloat16
        net, info = _network_class(config, AutoModelForCausalLM).from_pretrained(
            path,
            config=config,
            dtype=dtype or (torch.bfloat16 if keep_bfloat16 else torch.float32),
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **local,
        )
    for name in sorted(info["missing_keys"]):
        raise ModelError(f"{path / '*.safetensors'}: {name} is missing")
    for name, shape, expected in sorted(info["mismatched_keys"]):
        raise ModelError(f"{path / '*.safetensors'}: {name} has shape {tuple(shape)}, expected {tuple(expected)}")
    tokenizer = None
    if (path / "tokenizer.json").is_file():
        with _raising_model_errors(path / "tokenizer.json"):
            tokenizer = PreTrainedTokenizerFast.from_pretrained(path, **local)
    return _prepare(net).to(device), tokenizer


@contextmanager
def _raising_model_errors(file):
    """Turn any error of a library that reads `file` into a `ModelError` of one line."""
    try:
        yield
    except Exception as error:
        raise ModelError(f"{file} can not be read: {type(error).__name__}: {' '.join(str(error).split())}") from error
