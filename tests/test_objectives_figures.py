"""The figures of objectives, drawn from the tables of the reference runs."""

import pytest

from reversal.figures import objectives, read


@pytest.mark.parametrize("name", ["objectives", "epochs"])
def test_every_model_of_a_reference_table_is_drawn_and_described(root, name):
    table = read.read_table(root / f"paper/reference/{name}/objectives.csv")
    drawing = getattr(objectives, name)(table, models={})
    assert len(drawing.figure.axes) == {"objectives": 2, "epochs": 6}[name]
    recalled = drawing.alt_values["recalled"]
    assert recalled.count(";") + 1 == (table.model.nunique() if name == "objectives" else 8)


def test_every_objective_of_the_reference_run_has_its_own_description(root):
    table = read.read_table(root / "paper/reference/objectives/objectives.csv")
    words = {row.model: objectives.describe_objective(row) for row in table.itertuples()}
    assert len(set(words.values())) == len(words)


def test_rows_are_grouped_by_whether_the_subject_is_predicted_from_the_object(root):
    table = read.read_table(root / "paper/reference/objectives/objectives.csv")
    rows = [label.get_text() for label in objectives.objectives(table, models={}).figure.axes[0].get_yticklabels()]
    heads = [rows.index(title) for title in objectives.HEADINGS.values()]
    assert heads == sorted(heads) and heads[0] == 0
    assert (
        rows.index("any token masked") < heads[1] < rows.index("the subject masked in 30% of presentations") < heads[2]
    )
    assert {"next token", "any token masked but the subject"} <= set(rows[heads[2] :])
