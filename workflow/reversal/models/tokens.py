"""Tokens: training a tokenizer, and the token ranges of a row's subject and answer."""

import re
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

from ..common.errors import UserError
from . import spelling

EOS = "<eos>"
BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # a token of a Llama tokenizer


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
    return _fast(tokenizer, EOS)


def read_tokenizer(file, eos):
    """The tokenizer of a tokenizer.json, whose end token is `eos`."""
    tokenizer = _backend(file)
    if tokenizer.token_to_id(eos) is None:
        raise UserError(f"{file} has no token {eos!r}; eos_token names its end token")
    return _fast(tokenizer, eos)


def _backend(file):
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust reader raises no other kind
        raise UserError(f"{file} is no tokenizer.json: {str(error).splitlines()[0]}") from None


def _fast(tokenizer, eos):
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, clean_up_tokenization_spaces=False)


def read_pretrained(folder, eos):
    """The tokenizer of a checkpoint, whose end token has the id `eos`: its tokenizer.json, or Qwen2's older files."""
    folder = Path(folder)
    if (folder / "tokenizer.json").is_file():
        tokenizer = _backend(folder / "tokenizer.json")
    elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        tokenizer = Qwen2Tokenizer.from_pretrained(folder, local_files_only=True).backend_tokenizer
    else:
        raise UserError(f"{folder}: no tokenizer.json, nor vocab.json and merges.txt; a checkpoint needs its tokenizer")
    if tokenizer.id_to_token(eos) is None:
        raise UserError(f"{folder}/tokenizer.json has no token {eos}, though eos_token_id says so; it is another's")
    return _fast(tokenizer, tokenizer.id_to_token(eos))


class SubwordDropout:
    """Spells some tokens in smaller ones, as a word is spelt that the vocabulary lacks.

    Where training's words are whole tokens, the network would otherwise not know the pieces of a test's new words.
    """

    def __init__(self, tokenizer, share):
        self.model = bpe = tokenizer.backend_tokenizer.model
        if not spelling.can_cut(bpe):
            raise UserError(
                f"subword_dropout is {share}; allowed for this tokenizer: 0, as it spells the pieces of words apart"
            )
        self.share, self.spelt = share, {}
        whole = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
        self.names = {
            token: name
            for name, token in tokenizer.get_vocab().items()
            if len(name) > 1 and token not in whole and not (bpe.byte_fallback and BYTE.fullmatch(name))
        }

    def __call__(self, row, rng, free=None):
        """A row of tokens, of whose positions `free` (all, if None) a share are cut at a place that `rng` draws."""
        return [piece for piece, _ in self.spell(row, rng, free)]

    def spell(self, row, rng, free=None):
        """The same as pairs of a token and the position it had or was cut from."""
        free = range(len(row)) if free is None else free
        chosen = {i for i in free if row[i] in self.names and rng.random() < self.share}
        spelt = ((self._cut(token, rng) if i in chosen else [token], i) for i, token in enumerate(row))
        return [(piece, i) for pieces, i in spelt for piece in pieces]

    def _cut(self, token, rng):
        # Of random's functions, random() alone is promised to be the same in every version of Python.
        place = 1 + int(rng.random() * (len(self.names[token]) - 1))
        if (token, place) not in self.spelt:
            name = self.names[token]
            pieces = [piece for half in (name[:place], name[place:]) for piece in self.model.tokenize(half)]
            same = "".join(piece.value for piece in pieces) == name  # or a half can not be spelt
            self.spelt[token, place] = [piece.id for piece in pieces] if same else [token]
        return self.spelt[token, place]


def encode(tokenizer, row):
    """The `Example` of a `facts.Row`: prompt and completion as one text, without an end token."""
    text = row.text
    coded = tokenizer(text, return_offsets_mapping=True)
    ids, offsets = coded["input_ids"], coded["offset_mapping"]
    boundary = len(row.prompt)
    answer = (boundary + row.answer[0], boundary + row.answer[1])
    return Example(
        ids=ids,
        prompt=sum(1 for start, end in offsets if spelling.first_letter(text, start, end) < boundary),
        subject=spelling.token_range(text, offsets, row.subject),
        answer=spelling.token_range(text, offsets, answer),
    )


def around(example):
    """The positions of an `Example` that are neither its subject nor its answer."""
    fact = {*range(*example.subject), *range(*example.answer)}
    return [i for i in range(len(example.ids)) if i not in fact]


def prompt_ids(tokenizer, row):
    """The tokens of a row's prompt alone."""
    example = encode(tokenizer, row)
    return example.ids[: example.prompt]
