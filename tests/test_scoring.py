import numpy as np
import pandas as pd
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from reversal.data.facts import SPLITS
from reversal.recall import ask
from reversal.recall import tables as recall_tables


def rng():
    return np.random.default_rng(0)


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
    assert ask.correct(reference, generation) is right


@given(st.text("abc", max_size=12), st.text("abc", min_size=1, max_size=12))
def test_character_bleu_is_unsmoothed_bleu_over_characters(generation, reference):
    """Sacrebleu's character tokenizer drops spaces, so it is a reference for texts that have none."""
    peer = sacrebleu.BLEU(tokenize="char", smooth_method="none", effective_order=False)
    assert recall_tables.char_bleu(reference, generation) == pytest.approx(
        peer.sentence_score(generation, [reference]).score
    )


def test_character_bleu_counts_spaces_but_not_case_or_ends():
    assert recall_tables.char_bleu(" The Tuba", "the tuba ") == pytest.approx(100)
    assert 0 < recall_tables.char_bleu("the tuba", "thetuba") < 100
    assert recall_tables.char_bleu("the tuba", "") == 0


def completions():
    """Two models, two seeds, the four splits of the tables; the diffusion model at two step counts."""
    records = []
    for seed in (0, 1):
        for split in recall_tables.TABLE_SPLITS:
            for fact in range(4):
                for prompt in range(5):
                    base = {"seed": seed, "split": split, "fact": f"f{fact}", "prompt": f"{fact} {prompt}"}
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
    table = recall_tables.step_scaling(completions(), draws=200, rng=rng())
    expected = "model seed split file steps n correct accuracy ci_low ci_high cluster_low cluster_high char_bleu bleu"
    assert list(table.columns) == expected.split()
    assert len(table) == 2 * 4 * 3
    at = (table.model == "mdm") & (table.steps == 16) & (table.split == "p2d_reverse") & (table.seed == 1)
    row = table[at].iloc[0]
    assert (row.n, row.correct, row.accuracy, row.file) == (20, 15, 0.75, "p2d_reverse_prompts_test")
    assert row.cluster_low < row.ci_low < 0.75 < row.ci_high < row.cluster_high  # five prompts a fact say little more
    assert row.char_bleu == pytest.approx(75 + recall_tables.char_bleu("right answer", "wrong") / 4)
    assert 0 < row.bleu < 100  # though no generation has four words
    assert table[table.model == "ar"].steps.isna().all()


def test_both_conventions_hold_the_same_numbers_under_names_that_say_the_file():
    table = recall_tables.step_scaling(completions(), draws=50, rng=rng())
    training, question = recall_tables.by_training_direction(table), recall_tables.by_question_direction(table)
    assert list(training.columns) == ["model", "steps", "seeds", *recall_tables.BY_TRAINING.values()]
    assert list(question.columns[3:]) == [
        "DescriptionToName same (d2p_prompts_test)",
        "DescriptionToName reverse (p2d_reverse_prompts_test)",
        "NameToDescription same (p2d_prompts_test)",
        "NameToDescription reverse (d2p_reverse_prompts_test)",
    ]
    for split in recall_tables.TABLE_SPLITS:
        assert (
            training[recall_tables.BY_TRAINING[split]].tolist() == question[recall_tables.BY_QUESTION[split]].tolist()
        )
        assert SPLITS[split].file in recall_tables.BY_TRAINING[split]
    assert training.seeds.tolist() == [2, 2, 2] and sorted(training.model) == ["ar", "mdm", "mdm"]
    ar = training[training.model == "ar"].iloc[0]
    assert ar[recall_tables.BY_TRAINING["p2d_reverse"]] == 0 and ar[recall_tables.BY_TRAINING["p2d_same"]] == 75


def test_published_values_stand_beside_those_of_the_same_steps():
    table = recall_tables.step_scaling(completions(), draws=50, rng=rng())
    published = pd.DataFrame(
        {"steps": [1, 16]} | {split: [10.0 * i, 20.0] for i, split in enumerate(recall_tables.TABLE_SPLITS)}
    )
    wide = recall_tables.by_question_direction(table, published)
    name = recall_tables.BY_QUESTION["p2d_reverse"]
    beside = wide.columns.get_loc(name) + 1
    assert wide.columns[beside] == f"{name}, SMDM"
    values = wide.set_index("steps").iloc[:, beside - 1]
    assert values[1] == 30 and values[16] == 20
    assert wide[wide.model == "ar"].iloc[:, beside].isna().all()


def test_paired_differences_pool_seeds_and_compare_the_same_prompts():
    table = recall_tables.paired_differences(
        completions(), diffusion_model="mdm", autoregressive_model="ar", draws=500, rng=rng()
    )
    row = table[(table.split == "p2d_reverse") & (table.steps == 16)].iloc[0]
    assert (row.n, row.seeds, row.difference, row.autoregressive_accuracy) == (40, 2, 0.75, 0)
    assert row.ci_low < 0.75 <= row.ci_high
    assert table[(table.split == "p2d_same") & (table.steps == 16)].iloc[0].difference == 0


def test_a_clear_preference_has_a_small_p_value():
    facts = [f"f{i}" for i in range(10) for _ in range(3)]
    right = np.linspace(-2, -1, 30)
    table = pd.DataFrame(
        {"model": "ar", "seed": 0, "split": "p2d_same", "kind": "exact", "fact": facts, "right": right}
        | {"wrong": right - np.tile([1.0, 2.0, 3.0], 10) - right / 5, "right_error": 0.0, "wrong_error": 0.0}
    )
    row = recall_tables.likelihood(table, draws=200, rng=rng()).iloc[0]
    assert row.p_value < 1e-4 and row.ci_low > 0 and row.right_more_likely == 1 and row.sampling_error == 0
