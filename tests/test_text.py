import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflow.reversal import model, text
from workflow.reversal.facts import SPLITS, Row


def test_ranges_hold_exactly_the_subject_and_the_answer(generated, tokenizer):
    _, train, splits = generated
    for row in [*train[::97], *(row for split in SPLITS for row in splits[split][::41])]:
        example = text.encode(tokenizer, row)
        assert tokenizer.decode(example.ids[slice(*example.subject)]).strip() == row.subject_text
        assert tokenizer.decode(example.ids[slice(*example.answer)]).strip() == row.answer_text
        assert tokenizer.decode(example.ids[: example.prompt]) == row.prompt


def test_a_prompt_has_the_same_tokens_with_and_without_its_completion(generated, tokenizer):
    for row in generated[2]["p2d_same"][:50]:
        assert text.prompt_ids(tokenizer, row) == tokenizer(row.prompt)["input_ids"]


def test_a_token_that_covers_more_than_the_span_is_counted(tokenizer):
    row = Row(fact="x", template=0, prompt="Ada's", completion=" b", subject=(0, 3), answer=(1, 2))
    example = text.encode(tokenizer, row)
    assert example.subject[0] == 0 and example.answer == (len(example.ids) - 1, len(example.ids))


def test_a_span_without_tokens_is_an_error():
    with pytest.raises(ValueError, match="no token"):
        text.token_range("abc", [(0, 1)], (2, 3))


def test_the_bundled_tokenizer_keeps_every_word_of_the_lists_whole(root, words):
    """A word that falls apart into bytes could be spelled but hardly remembered."""
    for name in ("mdm", "ar"):
        _, reader = model.load(root / "data/base" / name, device="cpu")
        for word in (word for part in words.values() for word in part):
            assert len(reader(" " + word)["input_ids"]) == 1


def test_the_end_token_is_the_first_and_text_never_holds_it(tokenizer):
    assert tokenizer.eos_token_id == 0
    assert 0 not in tokenizer("Ada, who sold <the> eos")["input_ids"]


@settings(max_examples=20, deadline=None)
@given(share=st.floats(0, 1), seed=st.integers(0, 2**60))
def test_cut_tokens_are_the_same_text_and_the_same_seed_cuts_the_same(tokenizer, share, seed):
    texts = ["Zoë’s  father, Ada Lovelace,", " sold 12 maps!", "<eos>", ""]
    rows = [*tokenizer(texts)["input_ids"], [0, 0]]
    cut = text.cut(tokenizer, rows, share, seed=seed)
    assert tokenizer.batch_decode(cut) == tokenizer.batch_decode(rows)
    assert cut[-1] == [0, 0]  # end tokens stay
    assert cut == text.cut(tokenizer, rows, share, seed=seed)


def test_the_share_says_how_many_tokens_are_cut(generated, tokenizer):
    rows = tokenizer([row.text for row in generated[1][:300]])["input_ids"]
    names = {token: name for name, token in tokenizer.get_vocab().items()}
    long = sum(len(names[token]) > 1 for row in rows for token in row)
    assert text.cut(tokenizer, rows, 0, seed=0) == rows
    # A cut adds at least one token, and few pieces are unknown and fall apart further.
    added = sum(map(len, text.cut(tokenizer, rows, 0.2, seed=0))) - sum(map(len, rows))
    assert 0.18 * long < added < 0.45 * long


def test_cutting_shows_the_pieces_of_words_that_training_lacks(generated):
    texts = [row.text for row in generated[1]]
    tokenizer = text.train_tokenizer(texts, 4000)
    rows = tokenizer(texts)["input_ids"]
    new = {token for ids in tokenizer(["Whoever believes them", "whichever"])["input_ids"] for token in ids}
    assert not new <= {token for row in rows for token in row}
    assert new <= {token for row in text.cut(tokenizer, rows, 0.1, seed=0) for token in row}
