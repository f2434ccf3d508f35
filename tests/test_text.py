import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from reversal.common.errors import UserError
from reversal.data.facts import SPLITS, Row
from reversal.models import network, tokens


def test_ranges_contain_exactly_the_subject_and_the_answer(generated, tokenizer):
    _, train, splits = generated
    for row in [*train[::97], *(row for split in SPLITS for row in splits[split][::41])]:
        example = tokens.encode(tokenizer, row)
        assert tokenizer.decode(example.ids[slice(*example.subject)]).strip() == row.subject_text
        assert tokenizer.decode(example.ids[slice(*example.answer)]).strip() == row.answer_text
        assert tokenizer.decode(example.ids[: example.prompt]) == row.prompt


def test_a_prompt_has_the_same_tokens_with_and_without_its_completion(generated, tokenizer):
    for row in generated[2]["p2d_same"][:50]:
        example = tokens.encode(tokenizer, row)
        assert example.ids[: example.prompt] == tokenizer(row.prompt)["input_ids"]


def test_a_token_that_covers_more_than_the_span_is_counted(tokenizer):
    row = Row(fact="x", template=0, prompt="Ada's", completion=" b", subject=(0, 3), answer=(1, 2))
    example = tokens.encode(tokenizer, row)
    assert example.subject[0] == 0 and example.answer == (len(example.ids) - 1, len(example.ids))


def test_a_span_without_tokens_is_an_error():
    with pytest.raises(ValueError, match="no token"):
        tokens.token_range("abc", [(0, 1)], (2, 3))


def test_the_bundled_tokenizer_has_a_token_for_every_word_of_the_lists(root, words):
    """A word split into bytes could be spelled but hardly memorised."""
    for name in ("mdm", "ar"):
        _, reader = network.load(root / "data/base" / name, device="cpu")
        for word in (word for _, lists in words.values() for lines in lists.values() for word in lines):
            assert len(reader(" " + word)["input_ids"]) == 1


def test_the_end_token_has_id_0_and_is_never_part_of_text(tokenizer):
    assert tokenizer.eos_token_id == 0
    assert 0 not in tokenizer("Ada, who sold <the> eos")["input_ids"]


def llama_tokenizer():
    """A tokenizer like Llama's: spaces as ▁, other bytes as tokens of their own, <s> before each text."""
    letters = "▁abcdefghijklmnopqrstuvwxyz,."
    merges = [tuple(pair.split()) for pair in ["a n", "an d", "▁ and", "▁ t", "▁t h", "▁th e", "s a", "sa n", "san d"]]
    control = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {name: number for number, name in enumerate([*control, *letters, *map("".join, merges)])}
    reader = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
    reader.normalizer = normalizers.Replace(" ", "▁")
    reader.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    reader.add_special_tokens(["<unk>", "<s>", "</s>"])
    reader.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", vocab["<s>"])])
    return PreTrainedTokenizerFast(tokenizer_object=reader, eos_token="</s>")


@pytest.mark.parametrize("kind", ["byte-level", "llama"])
@settings(max_examples=20, deadline=None)
@given(share=st.floats(0, 1), seed=st.integers(0, 2**60))
def test_split_tokens_are_the_same_text_and_the_same_seed_gives_the_same_split(tokenizer, kind, share, seed):
    reader = tokenizer if kind == "byte-level" else llama_tokenizer()
    texts = ["Zoë’s  father, Ada Lovelace,", " sand and the 中 12 maps!", ""]
    rows = [*reader(texts)["input_ids"], [reader.eos_token_id] * 2]
    dropout = tokens.SubwordDropout(reader, share)
    split = [[dropout(row, random.Random(seed)) for row in rows] for _ in range(2)]
    assert reader.batch_decode(split[0]) == reader.batch_decode(rows)
    assert split[0] == split[1] and split[0][-1] == rows[-1]  # end tokens are never split


def test_the_share_is_that_of_tokens_that_are_split(tokenizer):
    names = {token: name for name, token in tokenizer.get_vocab().items() if token}
    rng, dropout = random.Random(0), tokens.SubwordDropout(tokenizer, 0.2)
    many = [token for token, name in names.items() if len(name) > 1] * 20
    split = sum(dropout([token], rng) != [token] for token in many)
    assert 0.18 < split / len(many) < 0.22
    assert all(dropout([token], rng) == [token] for token, name in names.items() if len(name) == 1)


def test_only_tokens_at_the_given_positions_are_split(generated, tokenizer):
    dropout = tokens.SubwordDropout(tokenizer, 1)
    for row in generated[1][::301]:
        example = tokens.encode(tokenizer, row)
        split = dropout(example.ids, random.Random(0), tokens.context_positions(example))
        assert len(split) > len(example.ids)
        for span in (example.subject, example.answer):
            fact = example.ids[slice(*span)]
            assert any(split[i : i + len(fact)] == fact for i in range(len(split)))
        words, pieces = ("".join(tokenizer.convert_ids_to_tokens(ids)) for ids in (example.ids, split))
        assert words == pieces


def test_subword_dropout_yields_the_pieces_of_words_that_training_lacks(generated):
    texts = [row.text for row in generated[1]]
    tokenizer = tokens.train_tokenizer(texts, 4000)
    rows, dropout, rng = tokenizer(texts)["input_ids"], tokens.SubwordDropout(tokenizer, 0.1), random.Random(0)
    new = {token for ids in tokenizer(["Whoever believes them", "whichever"])["input_ids"] for token in ids}
    assert not new <= {token for row in rows for token in row}
    assert new <= {token for row in rows for token in dropout(row, rng)}


def test_a_tokenizer_with_other_tokens_for_pieces_of_words_is_rejected():
    pieces = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    reader = PreTrainedTokenizerFast(tokenizer_object=pieces)
    with pytest.raises(UserError, match=r"subword_dropout is 0\.1; allowed for this tokenizer: 0"):
        tokens.SubwordDropout(reader, 0.1)
