import pytest

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
