"""Tokens: training a tokenizer, and the token ranges of a row's subject and answer."""

import random
from functools import cache
from typing import NamedTuple

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .errors import UserError

EOS = "<eos>"


class Example(NamedTuple):
    """A row in tokens; `subject` and `answer` are half-open ranges into `ids`."""

    ids: list
    prompt: int  # tokens of the prompt
    subject: tuple
    answer: tuple


def train_tokenizer(texts, size):
    """A byte-level BPE of at most `size` ids, trained on `texts`; `<eos>` is id 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, clean_up_tokenization_spaces=False)


def read_tokenizer(file, eos):
    """The tokenizer of a tokenizer.json, whose end token is `eos`."""
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust reader raises no other kind
        raise UserError(f"{file} is no tokenizer.json: {str(error).splitlines()[0]}") from None
    if tokenizer.token_to_id(eos) is None:
        raise UserError(f"{file} has no token {eos!r}; eos_token names its end token")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, clean_up_tokenization_spaces=False)


def cut(tokenizer, rows, share, *, seed):
    """Rows of tokens, a `share` of the tokens that can be cut in two, each at a random letter.

    A test's word that training lacks falls into pieces, which training never shows while its own words are whole.
    """
    rng = random.Random(seed)
    spell = tokenizer.backend_tokenizer.model.tokenize
    names = {token: name for name, token in tokenizer.get_vocab().items() if len(name) > 1}
    for token in tokenizer.all_special_ids:
        names.pop(token, None)

    @cache
    def halves(token, place):
        name = names[token]
        return [piece.id for half in (name[:place], name[place:]) for piece in spell(half)]

    def pieces(token):
        if token not in names or rng.random() >= share:
            return [token]
        return halves(token, rng.randrange(1, len(names[token])))

    return [[piece for token in row for piece in pieces(token)] for row in rows]


def encode(tokenizer, row):
    """The `Example` of a `facts.Row`: prompt and completion as one text, without an end token."""
    text = row.text
    coded = tokenizer(text, return_offsets_mapping=True)
    ids, offsets = coded["input_ids"], coded["offset_mapping"]
    boundary = len(row.prompt)
    answer = (boundary + row.answer[0], boundary + row.answer[1])
    return Example(
        ids=ids,
        prompt=sum(1 for start, end in offsets if _first_letter(text, start, end) < boundary),
        subject=token_range(text, offsets, row.subject),
        answer=token_range(text, offsets, answer),
    )


def token_range(text, offsets, span):
    """The half-open range of tokens that hold any letter of the characters `span`."""
    touched = [
        i for i, (start, end) in enumerate(offsets) if _first_letter(text, start, end) < span[1] and end > span[0]
    ]
    if not touched:
        raise ValueError(f"no token of {text!r} lies in characters {span[0]}–{span[1]}")
    return touched[0], touched[-1] + 1


def _first_letter(text, start, end):
    """Where a token's text begins, its leading spaces aside (a BPE token carries the space before its word)."""
    while start < end - 1 and text[start].isspace():
        start += 1
    return start


def prompt_ids(tokenizer, row):
    """The tokens of a row's prompt alone."""
    example = encode(tokenizer, row)
    return example.ids[: example.prompt]
