"""Check, before anything is trained, what later stages need of a study's rows and of each base.

`measure_rows` counts tokens, facts, templates and answers with a model's tokenizer; it runs as a job and leaves a JSON
file. `require_feasible` compares that with the configuration and raises one line that names the fix. No network is run.
"""

import math
from pathlib import Path

from tokenizers import Tokenizer

from ..common.errors import UserError
from ..data import facts
from ..models import tokens
from ..models.folders import read_json
from .configuration import describe_problem, find_missing_layers, find_wide_canvases, read_depth, read_positions
from .resolve import find_disabled_stages, is_diffusion, resolve_models

FIELDS = ("longest_row", "shortest_prompt", "supports_subword_dropout", "splits")
MIN_EDIT_FACTS = 4  # a fine-tuned edit compares a fact and its target with two others at least
MIN_RANK_ONE_ANSWERS = 3  # that of a fact, of its target, and one of neither


def measure_rows(tokenizer, files):
    """What the rows in `files` are like under a tokenizer.json, as JSON with FIELDS.

    Lengths are in tokens. `splits` has for each file, by its name, the number of facts, templates and distinct answers,
    and a `one_word_subject`, if there is one.
    """
    tokenizer = Tokenizer.from_file(str(tokenizer))
    longest, shortest, splits = (0, "", 0), math.inf, {}
    for file in map(str, files):
        rows = [facts.add_full_stop(row) for row in facts.read(file)]
        if not rows:
            raise UserError(f"{file}: the file has no rows; every test split needs some")
        splits[Path(file).stem] = {
            "facts": _count_distinct(rows, "fact"),
            "templates": _count_distinct(rows, "template"),
            "answers": _count_distinct(rows, "answer_text"),
            "one_word_subject": next((row.subject_text for row in rows if len(row.subject_text.split()) < 2), None),
        }
        for line, row in enumerate(rows, 1):
            encoding = tokenizer.encode(row.text)
            for span in (row.subject, tuple(len(row.prompt) + end for end in row.answer)):
                tokens.token_range(row.text, encoding.offsets, span)
            longest = max(longest, (len(encoding.ids), file, line))
            shortest = min(shortest, len(tokenizer.encode(row.prompt).ids))
    length, file, line = longest
    return {
        "longest_row": {"tokens": length, "file": file, "line": line},
        "shortest_prompt": None if math.isinf(shortest) else shortest,
        "supports_subword_dropout": tokens.supports_subword_dropout(tokenizer.model),
        "splits": splits,
    }


def _count_distinct(rows, field):
    return len({getattr(row, field) for row in rows})


def require_feasible(measured, config, name, base=None):
    """Raise the first reason why the model `name` cannot be taken through a study's stages.

    The rows are as `measure_rows` says; `base` is the folder of the model's base, where it exists already.
    """
    model = resolve_models(config)[name]
    for error in _find_errors(measured, config, name, model, base):
        raise UserError(error)


def _find_errors(measured, config, name, model, base):
    canvas, row = model["canvas"], measured["longest_row"]
    if row["tokens"] > canvas:
        yield (
            f"{row['file']}:{row['line']} needs {row['tokens']} tokens with its answer, but the canvas of {name} has "
            f"{canvas}; set sampling.canvas, or models.{name}.canvas for this model alone, to at least {row['tokens']}"
        )
    if is_diffusion(model):
        yield from _find_sampling_errors(measured, config, name, canvas, model["objective"]["block"])
    dropout = (model["training"] or {}).get("subword_dropout")
    if dropout and not measured["supports_subword_dropout"]:
        yield (
            f"training.subword_dropout is {dropout}; allowed: 0 for {name}, whose tokenizer spells parts of words "
            "differently from whole words"
        )
    yield from _find_edit_errors(measured["splits"], config)
    if base:
        yield from _find_base_errors(read_json(Path(base) / "config.json"), config, name, model)


def _find_sampling_errors(measured, config, name, canvas, network_block):
    """Too few steps for the sampler's blocks."""
    shortest, steps = measured["shortest_prompt"], min(config["sampling"]["steps"])
    if block := network_block:  # counted from the start of the canvas
        blocks = -(-canvas // block) - shortest // block
    else:
        block = config["sampling"]["block"]
        blocks = -(-(canvas - shortest) // block) if block else 0
    if blocks > steps:
        yield (
            f"sampling.steps has {steps}; allowed: from {blocks} up, since the shortest prompt leaves {name} {blocks} "
            f"blocks of {block} tokens"
        )


def _find_edit_errors(splits, config):
    """What fine-tuned and rank-one edits cannot do with the facts of a split."""
    edits, knows_facts = config["finetuned_edits"], config["data"]["source"] == "pairs"
    groups = ["known"] if knows_facts else edits["groups"]
    disabled = find_disabled_stages(config)
    finetuned = _list_splits(groups if "finetuned_edits" not in disabled else [])
    for split in finetuned:
        measured = splits[split]
        if measured["facts"] < MIN_EDIT_FACTS:
            yield (
                f"{split} has {measured['facts']} facts; fine-tuned edits need {MIN_EDIT_FACTS} at least: a fact, its "
                "target and two others; add people, or set finetuned_edits.max_facts to 0"
            )
        if measured["templates"] < 2:
            yield (
                f"{split} has one template; fine-tuned edits train with some and test with others; add a template, or "
                "set finetuned_edits.max_facts to 0"
            )
        if "insert" in edits["kinds"] and measured["one_word_subject"]:
            yield (
                f"{measured['one_word_subject']!r} is one word, but an invented subject is made of two halves; remove "
                "insert from finetuned_edits.kinds"
            )
        if measured["answers"] < 2:
            yield f"all facts of {split} have the same answer; an edit gives a fact the answer of another"
    rank_one = ["known"] if knows_facts else ["both", "p2d"]
    for split in _list_splits(rank_one if "rank_one_edits" not in disabled else []):
        if splits[split]["answers"] < MIN_RANK_ONE_ANSWERS:
            yield (
                f"{split} has {splits[split]['answers']} different answers; rank-one edits need {MIN_RANK_ONE_ANSWERS} "
                "at least: of a fact, of its target, and one more; add people, or set rank_one_edits.max_facts to 0"
            )


def _list_splits(groups):
    return [split for group in groups for split in facts.select_splits(group)]


def _find_base_errors(shape, config, name, model):
    """What a base's own config.json rules out."""
    positions = read_positions(shape)
    problems = [
        *find_missing_layers(config, name, read_depth(shape)),
        *find_wide_canvases(config, name, positions, f"{positions}, its positions"),
    ]
    yield from (describe_problem(config, *problem) for problem in problems)
    trained, wanted = shape.get("noise", "mask"), model["objective"]["noise"]
    if trained != wanted:
        yield (
            f"models.{name}.objective.noise is {wanted!r}; allowed: {trained!r}, with which its base was pretrained "
            "(base: pretrain makes others)"
        )
    precision, kind = config["tracing"]["precision"], shape.get("model_type")
    if precision != "float32" and kind not in ("llama", "qwen2"):
        yield f"tracing.precision is {precision!r}; allowed: float32 for {name}, a {kind}"
