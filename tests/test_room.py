"""A canvas too small for a question and its answer is told before anything is trained."""

import pytest

from reversal.common.errors import UserError
from reversal.data import facts
from reversal.models import tokens
from reversal.recall import room


@pytest.fixture
def files(generated, tmp_path):
    """Two splits on disk: one asks for descriptions, one for names, which end their rows."""
    for split in ("p2d_same", "p2d_reverse"):
        facts.write(generated[2][split], tmp_path / f"{split}.jsonl")
    return [tmp_path / f"{split}.jsonl" for split in ("p2d_same", "p2d_reverse")]


def test_the_longest_row_is_the_one_with_most_tokens_its_full_stop_counted(files, generated, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    rows = {file: generated[2][file.stem] for file in files}
    lengths = [len(tokens.encode(tokenizer, facts.closed(row)).ids) for own in rows.values() for row in own]
    found = room.longest(tmp_path / "tokenizer.json", files)
    assert found.tokens == max(lengths)
    named = facts.closed(next(own for file, own in rows.items() if str(file) == found.file)[found.line - 1])
    assert len(tokens.encode(tokenizer, named).ids) == found.tokens


def test_a_canvas_holds_the_longest_row_or_the_number_to_set_is_told(files, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    most = room.longest(tmp_path / "tokenizer.json", files).tokens
    assert room.require(tmp_path, files, most, model="mdm").tokens == most
    with pytest.raises(UserError, match=rf"canvas of mdm has {most - 1}: .* models.mdm.canvas .* to {most} or"):
        room.require(tmp_path, files, most - 1, model="mdm")


def test_no_rows_need_no_room(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    assert room.require(tmp_path, [], 1, model="mdm").tokens == 0
