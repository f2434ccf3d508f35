"""The figures of objectives, drawn from the tables that are kept with the paper."""

import pytest

from reversal.figures import objectives, read


@pytest.mark.parametrize("name", ["objectives", "epochs"])
def test_a_kept_table_is_drawn_and_told_whole(root, name):
    table = read.table(root / f"paper/reference/{name}/objectives.csv")
    drawing = getattr(objectives, name)(table, models={})
    assert len(drawing.figure.axes) == {"objectives": 2, "epochs": 6}[name]
    told = drawing.says["recalled"]
    assert told.count(";") + 1 == (table.model.nunique() if name == "objectives" else 8)


def test_every_objective_of_the_kept_run_has_words_of_its_own(root):
    table = read.table(root / "paper/reference/objectives/objectives.csv")
    words = {row.model: objectives.called(row) for row in table.itertuples()}
    assert len(set(words.values())) == len(words)


def test_rows_stand_under_whether_the_subject_is_predicted_from_the_object(root):
    table = read.table(root / "paper/reference/objectives/objectives.csv")
    rows = [label.get_text() for label in objectives.objectives(table, models={}).figure.axes[0].get_yticklabels()]
    heads = [rows.index(title) for title in objectives.PREDICTED.values()]
    assert heads == sorted(heads) and heads[0] == 0
    assert rows.index("any token masked") < heads[1] < rows.index("the subject masked in 30% of visits") < heads[2]
    assert {"next token", "any token masked but the subject"} <= set(rows[heads[2] :])
