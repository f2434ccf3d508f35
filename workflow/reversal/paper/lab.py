"""The lab of the page: both fine-tuned networks of a run, small enough to embed, and what can be asked of them.

A network is packed as rows of whole numbers of `BITS` bits, each row with a scale of its own: a byte with the 8 high
bits of every number, then a bit plane for each of its low bits. gzip compresses that and adds the checksum that a
browser verifies; in the page it is text in base 85. paper/lab_worker.js unpacks and runs it.

In the default study, 8 bits change one answer in fifty and the effects of restored states by up to 4% of the total
effect. 11 bits change one or two answers in 250, and effects by 0.3%.
"""

import base64
import gzip
import json
from pathlib import Path

import numpy as np
import safetensors.numpy

from ..data.facts import ANY_SPLIT, CONTROL_GROUPS, GROUPS
from ..figures.article import choose_person
from ..figures.denoising import choose_example
from ..figures.style import first_model
from ..models.folders import read_json
from ..models.vocabulary import FAMILIES

MOST_PARAMETERS = 5_000_000
BITS = 11
LEVELS = 2 ** (BITS - 1) - 1
WORDINGS = 3  # of each question
ALIGNMENT = 8  # bytes
PROTECTED = "control people: subject never masked in training"
KNOWN_PAIRS = "pairs known from pretraining"
# The tensors of a block, as Llama calls them, in the order in which they are packed.
BLOCK = (
    *("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)


def choose_models(families):
    """{family: name} of the models that the lab runs: the first of each family."""
    return {family: name for family in FAMILIES if (name := first_model(families, family))}


def find_obstacle(folders, sampling):
    """Why there is no lab for the networks in `folders`, as the end of a sentence; None if there can be one.

    `sampling` has the settings of the diffusion model, or is empty.
    """
    millions = max(map(_count_parameters, folders)) / 1e6
    if millions * 1e6 > MOST_PARAMETERS:
        return f"it runs networks of up to {MOST_PARAMETERS // 10**6} million parameters; one here has {millions:.1f}"
    configs = [read_json(Path(folder) / "config.json") for folder in folders]
    if not all(_is_plain_llama(config) for config in configs):
        return "it runs Llama networks with rotary positions and without biases"
    tokenizers = [read_json(Path(folder) / "tokenizer.json") for folder in folders]
    if any(tokenizer != tokenizers[0] for tokenizer in tokenizers) or not _is_byte_level(tokenizers[0]):
        return "its models need one byte-level BPE tokenizer"
    plain = {"order": "confidence", "temperature": 0, "block": None, "remasking": "none"}
    if any(sampling.get(key, value) != value for key, value in plain.items()):
        return "it samples by confidence at temperature 0, without blocks and remasking"
    return None


def _count_parameters(folder):
    shapes = []
    for file in Path(folder).glob("*.safetensors"):
        with safetensors.safe_open(file, framework="numpy") as tensors:
            shapes += [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
    return sum(int(np.prod(shape)) for shape in shapes)


def _is_plain_llama(config):
    rope = config.get("rope_parameters") or {}
    return (
        config.get("model_type") == "llama"
        and config.get("hidden_act") == "silu"
        and rope.get("rope_type", "default") == "default"
        and config.get("positions", "rotary") == "rotary"
        and not any(
            config.get(key)
            for key in ("attention_bias", "mlp_bias", "rounded_rope", "shifted", "store", "block", "rope_scaling")
        )
        and config.get("time_conditioning", "none") == "none"
        and config.get("noise", "mask") == "mask"
    )


def _is_byte_level(tokenizer):
    split, model = tokenizer.get("pre_tokenizer") or {}, tokenizer["model"]
    return (
        model.get("type") == "BPE"
        and split.get("type") == "ByteLevel"
        and split.get("use_regex", True)
        and not split.get("add_prefix_space")
        and not tokenizer.get("normalizer")
        and not any(model.get(key) for key in ("byte_fallback", "ignore_merges", "continuing_subword_prefix"))
    )


def pack(folder):
    """The network and the tokenizer in a model folder as bytes: the length of a header, a header, tensors; gzipped."""
    folder = Path(folder)
    config, tokenizer = (read_json(folder / f"{name}.json") for name in ("config", "tokenizer"))
    tensors = {name: value for file in folder.glob("*.safetensors") for name, value in _read_tensors(file).items()}
    names = [f"layers.{i}.{name}" for i in range(config["num_hidden_layers"]) for name in BLOCK]
    ordered = [tensors[f"model.{name}.weight"] for name in ("embed_tokens", *names, "norm")]
    ordered.append(tensors.get("lm_head.weight", ordered[0]))
    rows = [tensor.reshape(len(tensor), -1) for tensor in ordered]  # each number of a vector is a row
    heads = config["num_attention_heads"]
    mask = config.get("mask_token_id")
    header = {
        "width": config["hidden_size"],
        "layers": config["num_hidden_layers"],
        "heads": heads,
        "key_heads": config.get("num_key_value_heads", heads),
        "head_size": config.get("head_dim") or config["hidden_size"] // heads,
        "eps": config["rms_norm_eps"],
        "theta": config["rope_parameters"]["rope_theta"],
        "causal": mask is None,
        "mask": mask,
        "end": config["eos_token_id"],
        "vocabulary": config["vocab_size"] - (mask == config["vocab_size"] - 1),
        "bits": BITS,
        "shapes": [list(tensor.shape) for tensor in rows],
        "tokens": sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get),
        "merges": [pair if isinstance(pair, list) else pair.split(" ") for pair in tokenizer["model"]["merges"]],
        "added": {token["content"]: token["id"] for token in tokenizer["added_tokens"]},
    }
    coded = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    coded += b" " * (-(len(coded) + 4) % ALIGNMENT)
    parts = [np.uint32(len(coded)).tobytes(), coded, *(part for tensor in rows for part in quantize(tensor))]
    return gzip.compress(b"".join(parts), 9, mtime=0)


def _read_tensors(file):
    return {name: tensor.astype(np.float32) for name, tensor in safetensors.numpy.load_file(file).items()}


def quantize(tensor):
    """Scales (R,) float32, high bytes and planes of low bits of a `tensor` (R, C): bytes, each filled to ALIGNMENT."""
    scale = (np.abs(tensor).max(1) / LEVELS).astype("<f4")
    scale[scale == 0] = 1
    numbers = np.clip(np.rint(tensor / scale[:, None]), -LEVELS - 1, LEVELS).astype(np.int16).ravel()
    planes = [np.packbits(numbers >> bit & 1, bitorder="little") for bit in range(BITS - 8)]
    parts = [scale, (numbers >> (BITS - 8)).astype(np.int8), *planes]
    return [part.tobytes() + b"\0" * (-part.nbytes % ALIGNMENT) for part in parts]


def encode(packed):
    """Bytes as text that can stand within a `<script>`: base 85, with a comma for "<"."""
    return base64.b85encode(packed).decode().replace("<", ",")


def build(folders, families, facts, splits, completions, *, sampling, steps):
    """What the page embeds, as a dict for JSON: the packed networks as text, and what can be asked of them.

    `folders` is {model: its folder}, `families` {model: family} of all models of the study, `splits` {split: rows} and
    `completions` the table of all models, from which the article's figures take their questions. `sampling` has the
    settings of the diffusion model, and `steps` is the number of denoising steps to begin with. Where the study can
    have no lab the dict has the reason alone.
    """
    if obstacle := find_obstacle(list(folders.values()), sampling):
        return {"obstacle": obstacle}
    groups = GROUPS | dict.fromkeys(CONTROL_GROUPS, PROTECTED) | {"known": KNOWN_PAIRS}
    figures = find_figure_prompts(completions, splits, families)
    questions = list_questions(splits, set(figures.values()))
    return {
        "models": [
            {"name": name, "label": FAMILIES[families[name]].name, "family": families[name], "folder": str(folder)}
            for name, folder in folders.items()
        ],
        "canvas": sampling["canvas"],
        "guidance": sampling.get("guidance", 0),
        "schedule": sampling.get("schedule", "linear"),
        "steps": steps,
        "choices": sorted({*sampling.get("steps", []), steps}),
        "people": [
            [fact.name, groups[fact.group], int(fact.group in CONTROL_GROUPS), questions[fact.id]]
            for fact in facts
            if fact.id in questions
        ],
        "figures": figures,
        "weights": {name: encode(pack(folder)) for name, folder in folders.items()},
    }


def list_questions(splits, shown):
    """{fact: [[answer type, direction, [[prompt, completion, *subject, *answer], …]], …]} of the rows in `splits`.

    A question has its first WORDINGS, and those prompts that are `shown` in figures.
    """
    questions = {}
    for split, rows in splits.items():
        about = [ANY_SPLIT[split].answer_type, ANY_SPLIT[split].trained]
        for row in rows:
            wordings = questions.setdefault(row.fact, {}).setdefault(split, [*about, []])[-1]
            if len(wordings) < WORDINGS or row.prompt in shown:
                wordings.append([row.prompt, row.completion, *row.subject, *row.answer])
    return {fact: list(asked.values()) for fact, asked in questions.items()}


def find_figure_prompts(completions, splits, families):
    """{figure: the prompt that it shows}, the one that the lab begins with first; of one seed's `completions`."""
    shown, diffusion = {}, first_model(families, "diffusion")
    if person := choose_person(completions, models=families):
        shown["first_screen"] = next(row.prompt for (_, split), row in person.items() if split == "p2d_reverse")
    if diffusion:
        rows = [row for split in splits.values() for row in split]
        example = choose_example(completions[completions.model == diffusion], rows)
        shown |= {"timeline": example.prompt} if example else {}
    return shown
