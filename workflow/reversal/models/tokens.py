"""Tokens: training and reading tokenizers, the token ranges of a row's subject and answer, and subword dropout.

transformers is imported only by the functions that make one of its tokenizers, since the preflight needs the rest
without it.
"""

import re
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ..common.errors import UserError

EOS = "<eos>"
BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # a token of a Llama tokenizer that stands for one byte


class Example(NamedTuple):
    """A row in tokens; `subject` and `answer` are half-open ranges into `ids`."""

    ids: list
    prompt: int  # tokens of the prompt
    subject: tuple
    answer: tuple


def encode(tokenizer, row):
    """The `Example` of a `facts.Row`: prompt and completion as one text, without an end token."""
    text = row.text
    coded = tokenizer(text, return_offsets_mapping=True)
    ids, offsets = coded["input_ids"], coded["offset_mapping"]
    boundary = len(row.prompt)
    answer = (boundary + row.answer[0], boundary + row.answer[1])
    return Example(
        ids=ids,
        prompt=sum(1 for start, end in offsets if skip_leading_space(text, start, end) < boundary),
        subject=token_range(text, offsets, row.subject),
        answer=token_range(text, offsets, answer),
    )


def context_positions(example):
    """The positions of an `Example` outside its subject and its answer."""
    fact = {*range(*example.subject), *range(*example.answer)}
    return [i for i in range(len(example.ids)) if i not in fact]


def token_range(text, offsets, span):
    """The half-open range of tokens that contain any letter of the characters `span`."""
    touched = [
        i for i, (start, end) in enumerate(offsets) if skip_leading_space(text, start, end) < span[1] and end > span[0]
    ]
    if not touched:
        raise UserError(f"no token of {text!r} lies in characters {span[0]}–{span[1]}")
    return touched[0], touched[-1] + 1


def measure_fact_span(tokenizer, row):
    """The positions of the first and the last token of a row's subject and answer together.

    `tokenizer` is a `tokenizers.Tokenizer`.
    """
    offsets = tokenizer.encode(row.text).offsets
    spans = row.subject, tuple(len(row.prompt) + end for end in row.answer)
    ranges = [token_range(row.text, offsets, span) for span in spans]
    return min(start for start, _ in ranges), max(end for _, end in ranges) - 1


def skip_leading_space(text, start, end):
    """The index of a token's first character that is not a leading space (a BPE token includes the space before it)."""
    while start < end - 1 and text[start].isspace():
        start += 1
    return start


def train_tokenizer(texts, size):
    """Train a byte-level BPE of at most `size` ids on `texts`; `<eos>` is id 0."""
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
    return _wrap(tokenizer, EOS)


def read_tokenizer(file, eos):
    """Read the tokenizer of a tokenizer.json whose end token is `eos`."""
    tokenizer = _read_backend(file)
    if tokenizer.token_to_id(eos) is None:
        raise UserError(f"{file} has no token {eos!r}; eos_token names its end token")
    return _wrap(tokenizer, eos)


def read_checkpoint_tokenizer(folder, eos):
    """Read a checkpoint's tokenizer, whose end token has the id `eos`: tokenizer.json, or Qwen2's older files."""
    folder = Path(folder)
    if (folder / "tokenizer.json").is_file():
        tokenizer = _read_backend(folder / "tokenizer.json")
    elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        from transformers import Qwen2Tokenizer

        tokenizer = Qwen2Tokenizer.from_pretrained(folder, local_files_only=True).backend_tokenizer
    else:
        raise UserError(f"{folder}: no tokenizer.json, nor vocab.json and merges.txt; a checkpoint needs its tokenizer")
    if tokenizer.id_to_token(eos) is None:
        raise UserError(f"{folder}/tokenizer.json has no token {eos}, though eos_token_id says so; it is another's")
    return _wrap(tokenizer, tokenizer.id_to_token(eos))


def _read_backend(file):
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust reader raises no narrower class
        raise UserError(f"{file} is no tokenizer.json: {str(error).splitlines()[0]}") from None


def _wrap(tokenizer, eos):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, clean_up_tokenization_spaces=False)


def supports_subword_dropout(model):
    """Whether the model of a tokenizer has the same tokens for the pieces of a word as for whole words."""
    return isinstance(model, models.BPE) and not (model.continuing_subword_prefix or model.end_of_word_suffix)


class SubwordDropout:
    """Splits a random share of the tokens into smaller ones, as BPE-dropout does.

    Where the words of training are whole tokens, the network would otherwise not know the pieces of new words in tests.
    """

    def __init__(self, tokenizer, share):
        self.model = bpe = tokenizer.backend_tokenizer.model
        if not supports_subword_dropout(bpe):
            raise UserError(
                f"subword_dropout is {share}; allowed for this tokenizer: 0, since it has other tokens for the pieces "
                "of words than for whole words"
            )
        self.share, self.splits = share, {}
        special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
        self.names = {
            token: name
            for name, token in tokenizer.get_vocab().items()
            if len(name) > 1 and token not in special and not (bpe.byte_fallback and BYTE.fullmatch(name))
        }

    def __call__(self, row, rng, positions=None):
        """`row` (a list of tokens) with a share of those at `positions` (all, if None) split at random characters."""
        return [piece for piece, _ in self.split(row, rng, positions)]

    def split(self, row, rng, positions=None):
        """The same as (token, position in `row`) pairs; all pieces of a token have its position."""
        positions = range(len(row)) if positions is None else positions
        chosen = {i for i in positions if row[i] in self.names and rng.random() < self.share}
        split = ((self._split_token(token, rng) if i in chosen else [token], i) for i, token in enumerate(row))
        return [(piece, i) for pieces, i in split for piece in pieces]

    def _split_token(self, token, rng):
        # Of random's functions, random() alone is promised to be the same in every version of Python.
        at = 1 + int(rng.random() * (len(self.names[token]) - 1))
        if (token, at) not in self.splits:
            name = self.names[token]
            pieces = [piece for half in (name[:at], name[at:]) for piece in self.model.tokenize(half)]
            complete = "".join(piece.value for piece in pieces) == name  # the vocabulary may lack a half
            self.splits[token, at] = [piece.id for piece in pieces] if complete else [token]
        return self.splits[token, at]
