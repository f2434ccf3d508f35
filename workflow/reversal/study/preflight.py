"""What later stages need of a study's rows and of a base: measured and told before anything is trained. No network."""

import math
from pathlib import Path

from tokenizers import Tokenizer

from ..common.errors import UserError
from ..data import facts
from ..models import spelling
from ..models.folders import read_json
from . import configuration

FIELDS = ("longest", "shortest", "probed", "cut", "asked")  # of what is measured
SEVERAL = 4  # facts: rewriting compares one and its donor with two others


def measure(tokenizer, files, prompts=()):
    """What the rows in `files` are like by a tokenizer.json, as JSON.

    In tokens, the `longest` row with where it is, the `shortest` prompt, and the longest of the `prompts` to be
    `probed` with; whether tokens can be `cut`; and what is `asked`, by the names of the files: how many facts,
    templates and answers, and a `brief` subject, of one word.
    """
    reader = Tokenizer.from_file(str(tokenizer))
    longest, shortest, asked = (0, "", 0), math.inf, {}
    for file in map(str, files):
        rows = [facts.closed(row) for row in facts.read(file)]
        if not rows:
            raise UserError(f"{file}: no row in it; every test asks something")
        asked[Path(file).stem] = {
            **{"facts": _distinct(rows, "fact"), "templates": _distinct(rows, "template")},
            "answers": _distinct(rows, "answer_text"),
            "brief": next((row.subject_text for row in rows if len(row.subject_text.split()) < 2), None),
        }
        for line, row in enumerate(rows, 1):
            coded = reader.encode(row.text)
            for first, end in (row.subject, [len(row.prompt) + place for place in row.answer]):
                spelling.token_range(row.text, coded.offsets, (first, end))
            longest = max(longest, (len(coded.ids), file, line))
            shortest = min(shortest, len(reader.encode(row.prompt).ids))
    tokens, file, line = longest
    return {
        "longest": {"tokens": tokens, "file": file, "line": line},
        "shortest": None if math.isinf(shortest) else shortest,
        "probed": max(([len(reader.encode(prompt).ids), prompt] for prompt in prompts), default=[0, ""]),
        "cut": spelling.can_cut(reader.model),
        "asked": asked,
    }


def _distinct(rows, field):
    return len({getattr(row, field) for row in rows})


def require(measured, config, model, base=None):
    """Refuse what a study's `config` asks of a `model` and later stages could not do.

    The rows are as `measured`; `base` is the folder of its base, where that is there.
    """
    for complaint in _complaints(measured, config, model, base):
        raise UserError(complaint)


def _complaints(measured, config, model, base):
    own = config["models"][model]
    diffusion = own["family"] == "diffusion"
    canvas = own.get("canvas", config["sampling"]["canvas"])
    longest = measured["longest"]
    if longest["tokens"] > canvas:
        yield (
            f"{longest['file']}:{longest['line']} and its answer have {longest['tokens']} tokens, more than any other "
            f"row; the canvas of {model} has {canvas}: set sampling.canvas, or models.{model}.canvas for this model "
            f"alone, to {longest['tokens']} or a little more"
        )
    probed, prompt = measured["probed"]
    if diffusion and probed >= canvas and config["data"]["source"] != "pairs":
        yield (
            f"the prompt {prompt!r} has {probed} tokens; the canvas of {model} has {canvas}: give shorter ones in "
            "probe.file, or a wider canvas"
        )
    block, steps = config["sampling"]["block"], min(config["sampling"]["steps"])
    if diffusion and block and (blocks := -(-(canvas - measured["shortest"]) // block)) > steps:
        yield (
            f"sampling.steps has {steps}; allowed: from {blocks} up, since the shortest prompt leaves {model} so many "
            f"blocks of {block} tokens"
        )
    recipe = {} if config["training"] == "none" else config["training"] | own.get("training", {})
    if recipe.get("subword_dropout") and not measured["subword_dropout"]:
        yield (
            f"training.subword_dropout is {recipe['subword_dropout']}; allowed: 0 for {model}, whose tokenizer spells the pieces of words apart"
        )
    yield from _of_facts(measured["asked"], config)
    if base:
        yield from _of_base(read_json(Path(base) / "config.json"), config, model)


def _of_facts(asked, config):
    """What rewriting and edits cannot do with the facts of a split."""
    rewriting = config["finetuned_edits"]
    known = config["data"]["source"] == "pairs"
    groups = ["known"] if known else rewriting["groups"]
    rewritten = _splits(groups if rewriting["max_facts"] != 0 else [])
    for split in rewritten:
        if asked[split]["facts"] < SEVERAL:
            yield (
                f"{split} asks about {asked[split]['facts']} facts; rewriting takes {SEVERAL} at least: a fact, its "
                "donor and two others (more people, or finetuned_edits.max_facts: 0)"
            )
        if asked[split]["templates"] < 2:
            yield (
                f"{split} asks with one template; rewriting teaches with some and asks with others: two at least, or "
                "finetuned_edits.max_facts: 0"
            )
        if "teach" in rewriting["lessons"] and asked[split]["brief"]:
            yield (
                f"{asked[split]['brief']!r} is one word; a subject nobody has is made of two halves: leave teach out "
                "of finetuned_edits.lessons"
            )
    for split in [*rewritten, *_splits(["known"] if known else ["both", "p2d"])]:
        if asked[split]["answers"] < 2:
            yield f"all facts of {split} have one answer; an edit gives a fact another's"


def _splits(groups):
    return [split for group in groups for split in facts.both_ways(group)]


def _of_base(shape, config, model):
    """What a base's own config.json rules out."""
    depth = shape.get("num_hidden_layers", math.inf)
    for section, name in configuration.LAYERED:
        layers = config[section][name]
        for layer in layers if isinstance(layers, list) else ():
            if layer >= depth:
                yield f"{section}.{name} has {layer}; allowed: up to {depth - 1}, the last layer of {model}"
    noise, aim = shape.get("noise", "mask"), config["models"][model].get("objective", {}).get("noise", "mask")
    if noise != aim:
        yield (
            f"models.{model}.objective.noise is {aim!r}; allowed: {noise!r}, with which its base was pretrained (base: "
            "pretrain makes others)"
        )
    precision, kind = config["tracing"]["precision"], shape.get("model_type")
    if precision != "float32" and kind not in ("llama", "qwen2"):
        yield f"tracing.precision is {precision!r}; allowed: float32 for {model}, a {kind}"
