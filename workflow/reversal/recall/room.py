"""Whether a canvas holds every question and its answer: known once there are rows and a tokenizer. No network."""

from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from ..common.errors import UserError
from ..data import facts


class Longest(NamedTuple):
    """The row that takes most room."""

    tokens: int
    file: str
    line: int


def longest(tokenizer, files):
    """The `Longest` row of some files of rows, by a tokenizer.json."""
    encode = Tokenizer.from_file(str(tokenizer)).encode
    found = [
        Longest(len(encode(facts.closed(row).text).ids), str(file), line)
        for file in files
        for line, row in enumerate(facts.read(file), 1)
    ]
    return max(found, default=Longest(0, "", 0))


def require(base, files, canvas, *, model):
    """The `Longest` row of `files`, which the canvas of a `model` whose `base` is in a folder has to hold."""
    found = longest(Path(base) / "tokenizer.json", files)
    if found.tokens > canvas:
        raise UserError(
            f"{found.file}:{found.line} and its answer have {found.tokens} tokens, more than any other row; the canvas "
            f"of {model} has {canvas}: set sampling.canvas, or models.{model}.canvas for this model alone, "
            f"to {found.tokens} or a little more"
        )
    return found
