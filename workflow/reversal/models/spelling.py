"""Where a text's characters lie among its tokens, and which tokenizers' tokens can be spelt in smaller ones."""

from tokenizers import models

from ..common.errors import UserError


def token_range(text, offsets, span):
    """The half-open range of tokens that hold any letter of the characters `span`."""
    touched = [
        i for i, (start, end) in enumerate(offsets) if first_letter(text, start, end) < span[1] and end > span[0]
    ]
    if not touched:
        raise UserError(f"no token of {text!r} lies in characters {span[0]}–{span[1]}")
    return touched[0], touched[-1] + 1


def first_letter(text, start, end):
    """Where a token's text begins, its leading spaces aside (a BPE token carries the space before its word)."""
    while start < end - 1 and text[start].isspace():
        start += 1
    return start


def can_cut(model):
    """Whether a tokenizer's model spells the pieces of a word as it spells whole words."""
    return isinstance(model, models.BPE) and not (model.continuing_subword_prefix or model.end_of_word_suffix)
