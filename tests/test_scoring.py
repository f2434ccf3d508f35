import numpy as np
import pandas as pd
import pytest

from reversal.recall import evaluation
from reversal.recall import tables as recall_tables


@pytest.mark.parametrize(
    ("reference", "generation", "right"),
    [
        (" a Tuba maker.", "a tuba maker.  And more", True),
        (" a tuba maker.", "it is A TUBA MAKER.", True),
        (" a tuba maker.", "a tuba maker", False),
        (" Ada Quill", "", False),
    ],
)
def test_a_completion_is_right_when_it_contains_the_reference(reference, generation, right):
    assert evaluation.is_correct(reference, generation) is right


def completions():
    """Two models, two seeds, the four splits of the tables; the diffusion model at two step counts."""
    records = []
    for seed in (0, 1):
        for split in recall_tables.TABLE_SPLITS:
            for fact in range(4):
                for prompt in range(5):
                    base = {"seed": seed, "split": split, "fact": f"f{fact}", "template": prompt}
                    base["prompt"] = f"{fact} {prompt}"
                    for name, steps, right in (
                        ("mdm", 1, fact < 2),
                        ("mdm", 16, fact < 3),
                        ("ar", None, split.endswith("same") and fact < 3),
                    ):
                        generation = " right answer" if right else " wrong"
                        records.append(
                            base
                            | {"model": name, "steps": steps, "reference": " right answer"}
                            | {"generation": generation, "correct": right}
                        )
    return pd.DataFrame(records)


def test_step_scaling_has_a_row_per_model_seed_split_and_number_of_steps():
    table = recall_tables.step_scaling(completions())
    expected = "model seed split file steps n correct accuracy ci_low ci_high"
    assert list(table.columns) == expected.split()
    assert len(table) == 2 * 4 * 3
    at = (table.model == "mdm") & (table.steps == 16) & (table.split == "p2d_reverse") & (table.seed == 1)
    row = table[at].iloc[0]
    assert (row.n, row.correct, row.accuracy, row.file) == (20, 15, 0.75, "p2d_reverse_prompts_test")
    assert row.ci_low < 0.2 and row.ci_high > 0.97  # five prompts of a fact are no more evidence than one
    assert table[table.model == "ar"].steps.isna().all()


def select_differences(contrast, **where):
    table = recall_tables.differences(completions(), {"mdm": "diffusion", "ar": "autoregressive"})
    rows = table[table.contrast == contrast]
    for name, value in where.items():
        rows = rows[rows[name] == value]
    return rows


def test_families_are_compared_on_the_same_prompts_of_all_seeds():
    row = select_differences("family", split="p2d_reverse", steps=16).iloc[0]
    assert (row.model, row.against_model, row.n, row.seeds) == ("mdm", "ar", 40, 2)
    assert row.difference == 0.75 and row.ci_low < 0.75 <= row.ci_high
    assert select_differences("family", split="p2d_same", steps=16).iloc[0].difference == 0


def test_the_most_steps_are_compared_with_each_fewer():
    rows = select_differences("steps")
    assert set(rows.model) == {"mdm"} and set(zip(rows.steps, rows.against_steps, strict=True)) == {(16, 1)}
    assert (rows.difference == 0.25).all()


def test_directions_are_compared_with_the_same_question_or_the_same_people():
    rows = pd.concat([select_differences("question"), select_differences("people")])
    pairs = set(zip(rows.contrast, rows.split, rows.against_split, strict=True))
    assert pairs == {
        ("question", "d2p_same", "p2d_reverse"),
        ("question", "p2d_same", "d2p_reverse"),
        ("people", "d2p_same", "d2p_reverse"),
        ("people", "p2d_same", "p2d_reverse"),
    }
    assert (rows[rows.model == "ar"].difference == 0.75).all() and (rows[rows.model == "mdm"].difference == 0).all()


def test_one_model_alone_has_no_contrast_of_families():
    alone = completions().query("model == 'ar'")
    assert set(recall_tables.differences(alone, {"ar": "autoregressive"}).contrast) == {"question", "people"}


def test_a_clear_preference_has_an_interval_above_zero():
    facts = [f"f{i}" for i in range(10) for _ in range(3)]
    right = np.linspace(-2, -1, 30)
    table = pd.DataFrame(
        {"model": "ar", "seed": 0, "split": "p2d_same", "kind": "exact", "fact": facts, "right": right}
        | {"template": np.tile(range(3), 10)}
        | {"wrong": right - np.tile([1.5, 2.0, 2.5], 10) - right / 5}
    )
    row = recall_tables.likelihood(table).iloc[0]
    assert 0 < row.ci_low < 2 < row.ci_high and row.right_more_likely == 1
    assert row.preferred_low == pytest.approx(0.7225, abs=1e-3)  # Wilson's of ten facts
