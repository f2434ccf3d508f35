import math

import numpy as np
import pandas as pd
import pytest
import sacrebleu
import torch
from hypothesis import given
from hypothesis import strategies as st

from workflow.reversal import autoregressive, diffusion, model, probing, scoring, text
from workflow.reversal.facts import SPLITS, Row

ROWS = [
    Row("p-0", 0, "Ada Quill is", " a tuba maker.", (0, 9), (1, 13)),
    Row("p-0", 1, "Known to all, Ada Quill is", " a tuba maker.", (14, 23), (1, 13)),
    Row("p-1", 0, "Bo Reed is", " a baker of clouds.", (0, 7), (1, 18)),
]
WRONG = [
    Row("p-0", 0, ROWS[0].prompt, ROWS[2].completion, (0, 9), (1, 18)),
    Row("p-0", 1, ROWS[1].prompt, ROWS[2].completion, (14, 23), (1, 18)),
    Row("p-1", 0, ROWS[2].prompt, ROWS[0].completion, (0, 7), (1, 13)),
]
CANVAS = 30


@pytest.fixture(scope="module")
def tokenizer():
    return text.train_tokenizer([row.text for row in ROWS], 290)


@pytest.fixture(scope="module")
def networks(tokenizer):
    shape = {"vocab": len(tokenizer), "width": 16, "layers": 2, "heads": 2, "mlp": 32, "eos": tokenizer.eos_token_id}
    return {"mdm": model.new(causal=False, seed=0, **shape), "ar": model.new(causal=True, seed=1, **shape)}


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
    assert scoring.correct(reference, generation) is right


@given(st.text("abc", max_size=12), st.text("abc", min_size=1, max_size=12))
def test_character_bleu_is_unsmoothed_bleu_over_characters(generation, reference):
    """Sacrebleu's character tokenizer drops spaces, so it is a reference for texts that have none."""
    peer = sacrebleu.BLEU(tokenize="char", smooth_method="none", effective_order=False)
    assert scoring.char_bleu(reference, generation) == pytest.approx(peer.sentence_score(generation, [reference]).score)


def test_character_bleu_counts_spaces_but_not_case_or_ends():
    assert scoring.char_bleu(" The Tuba", "the tuba ") == pytest.approx(100)
    assert 0 < scoring.char_bleu("the tuba", "thetuba") < 100
    assert scoring.char_bleu("the tuba", "") == 0


@pytest.mark.parametrize("family", ["mdm", "ar"])
def test_completions_say_what_was_revealed_where_and_when(networks, tokenizer, family):
    sampling = {"steps": 4, "guidance": 0.8} if family == "mdm" else {}
    found = scoring.complete_split(networks[family], tokenizer, ROWS, split="p2d_same", canvas=CANVAS, **sampling)
    assert [c["prompt"] for c in found] == [row.prompt for row in ROWS]
    for row, completion in zip(ROWS, found, strict=True):
        prompt = text.encode(tokenizer, row).prompt
        assert completion["steps"] == sampling.get("steps") and completion["reference"] == row.completion
        assert completion["correct"] == scoring.correct(row.completion, completion["generation"])
        tokens = {position: token for position, token, _, _ in completion["revealed"]}
        assert list(sorted(tokens)) == list(range(prompt, prompt + len(tokens)))
        if family == "mdm":
            assert len(tokens) == CANVAS - prompt
        steps = [step for _, _, step, _ in completion["revealed"]]
        assert steps == sorted(steps)
        assert all(0 <= confidence <= 1 for *_, confidence in completion["revealed"])


def test_both_families_answer_what_their_own_modules_give(networks, tokenizer):
    prompts = [text.prompt_ids(tokenizer, row) for row in ROWS]
    mdm = scoring.complete_split(networks["mdm"], tokenizer, ROWS, split="p2d_same", canvas=CANVAS, steps=3)
    canvas = diffusion.denoise(networks["mdm"], prompts, canvas=CANVAS, steps=3).canvas.tolist()
    for completion, prompt, ids in zip(mdm, prompts, canvas, strict=True):
        assert completion["generation"] == scoring.decode(tokenizer, ids[len(prompt) :])
    ar = scoring.complete_split(networks["ar"], tokenizer, ROWS, split="p2d_same", canvas=CANVAS)
    for completion, prompt in zip(ar, prompts, strict=True):
        room = CANVAS - len(prompt)
        (ids,) = autoregressive.complete(networks["ar"], [prompt], new_tokens=room, eos=tokenizer.eos_token_id).tokens
        assert completion["generation"] == scoring.decode(tokenizer, ids)
        assert len(completion["revealed"]) == len(ids)


def test_a_generation_ends_at_the_first_end_token(tokenizer):
    ids = tokenizer(" a tuba")["input_ids"]
    assert scoring.decode(tokenizer, ids + [tokenizer.eos_token_id] + ids) == " a tuba"
    assert scoring.decode(tokenizer, []) == ""


def test_a_canvas_without_room_for_an_answer_is_refused(networks, tokenizer):
    longest = max(len(text.encode(tokenizer, row).ids) for row in ROWS)
    with pytest.raises(ValueError, match=f"p2d_same: row . and its answer have {longest} tokens; the canvas holds"):
        scoring.complete_split(networks["mdm"], tokenizer, ROWS, split="p2d_same", canvas=longest - 1, steps=2)


def test_completions_come_back_from_disk_with_their_model_and_seed(networks, tokenizer, tmp_path):
    found = scoring.complete_split(networks["ar"], tokenizer, ROWS, split="p2d_same", canvas=CANVAS)
    scoring.write_completions(found, tmp_path / "a.jsonl")
    table = scoring.read_completions(tmp_path / "a.jsonl", model="ar", seed=3)
    assert list(table.columns) == ["model", "seed", *found[0]]
    assert table.generation.tolist() == [c["generation"] for c in found]


def completions():
    """Two models, two seeds, the four splits of the tables; the diffusion model at two step counts."""
    records = []
    for seed in (0, 1):
        for split in scoring.TABLE_SPLITS:
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
    table = scoring.step_scaling(completions(), draws=200, rng=rng())
    expected = "model seed split file steps n correct accuracy ci_low ci_high cluster_low cluster_high char_bleu bleu"
    assert list(table.columns) == expected.split()
    assert len(table) == 2 * 4 * 3
    at = (table.model == "mdm") & (table.steps == 16) & (table.split == "p2d_reverse") & (table.seed == 1)
    row = table[at].iloc[0]
    assert (row.n, row.correct, row.accuracy, row.file) == (20, 15, 0.75, "p2d_reverse_prompts_test")
    assert row.cluster_low < row.ci_low < 0.75 < row.ci_high < row.cluster_high  # five prompts a fact say little more
    assert row.char_bleu == pytest.approx(75 + scoring.char_bleu("right answer", "wrong") / 4)
    assert 0 < row.bleu < 100  # though no generation has four words
    assert table[table.model == "ar"].steps.isna().all()


def test_both_conventions_hold_the_same_numbers_under_names_that_say_the_file():
    table = scoring.step_scaling(completions(), draws=50, rng=rng())
    training, question = scoring.by_training_direction(table), scoring.by_question_direction(table)
    assert list(training.columns) == ["model", "steps", "seeds", *scoring.BY_TRAINING.values()]
    assert list(question.columns[3:]) == [
        "DescriptionToName same (d2p_prompts_test)",
        "DescriptionToName reverse (p2d_reverse_prompts_test)",
        "NameToDescription same (p2d_prompts_test)",
        "NameToDescription reverse (d2p_reverse_prompts_test)",
    ]
    for split in scoring.TABLE_SPLITS:
        assert training[scoring.BY_TRAINING[split]].tolist() == question[scoring.BY_QUESTION[split]].tolist()
        assert SPLITS[split].file in scoring.BY_TRAINING[split]
    assert training.seeds.tolist() == [2, 2, 2] and sorted(training.model) == ["ar", "mdm", "mdm"]
    ar = training[training.model == "ar"].iloc[0]
    assert ar[scoring.BY_TRAINING["p2d_reverse"]] == 0 and ar[scoring.BY_TRAINING["p2d_same"]] == 75


def test_published_values_stand_beside_those_of_the_same_steps():
    table = scoring.step_scaling(completions(), draws=50, rng=rng())
    published = pd.DataFrame(
        {"steps": [1, 16]} | {split: [10.0 * i, 20.0] for i, split in enumerate(scoring.TABLE_SPLITS)}
    )
    wide = scoring.by_question_direction(table, published)
    name = scoring.BY_QUESTION["p2d_reverse"]
    beside = wide.columns.get_loc(name) + 1
    assert wide.columns[beside] == f"{name}, published"
    values = wide.set_index("steps").iloc[:, beside - 1]
    assert values[1] == 30 and values[16] == 20
    assert wide[wide.model == "ar"].iloc[:, beside].isna().all()


def test_paired_differences_pool_seeds_and_compare_the_same_prompts():
    table = scoring.paired_differences(
        completions(), diffusion_model="mdm", autoregressive_model="ar", draws=500, rng=rng()
    )
    row = table[(table.split == "p2d_reverse") & (table.steps == 16)].iloc[0]
    assert (row.n, row.seeds, row.difference, row.autoregressive_accuracy) == (40, 2, 0.75, 0)
    assert row.ci_low < 0.75 <= row.ci_high
    assert table[(table.split == "p2d_same") & (table.steps == 16)].iloc[0].difference == 0


@pytest.mark.parametrize("family", ["mdm", "ar"])
def test_likelihoods_compare_right_and_wrong_answers_to_the_same_prompt(networks, tokenizer, family):
    def compare(right, wrong):
        found = scoring.compare_likelihoods(
            networks[family], tokenizer, right, wrong, split="p2d_same", canvas=CANVAS, samples=8,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        return pd.DataFrame(found).assign(model=family, seed=0)

    found = compare(ROWS, WRONG)
    assert set(found.kind) == {"bound" if family == "mdm" else "exact"}
    assert (found.right < 0).all() and (found.wrong < 0).all()
    table = scoring.likelihood(found, draws=100, rng=rng())
    row = table.iloc[0]
    assert (row.n, row.facts) == (3, 2)
    assert row.difference == pytest.approx((found.right - found.wrong).mean())
    assert 0 <= row.p_value <= 1
    assert (row.sampling_error > 0) == (family == "mdm")
    alike = scoring.likelihood(compare(ROWS, ROWS), draws=100, rng=rng()).iloc[0]
    if family == "ar":
        assert alike.difference == pytest.approx(0, abs=1e-5)


def test_likelihoods_of_other_prompts_are_refused(networks, tokenizer):
    with pytest.raises(ValueError, match="p2d_same: row 1 has another prompt"):
        scoring.compare_likelihoods(networks["ar"], tokenizer, ROWS, WRONG[::-1], split="p2d_same", canvas=CANVAS)


def test_a_clear_preference_has_a_small_p_value():
    facts = [f"f{i}" for i in range(10) for _ in range(3)]
    right = np.linspace(-2, -1, 30)
    table = pd.DataFrame(
        {"model": "ar", "seed": 0, "split": "p2d_same", "kind": "exact", "fact": facts, "right": right}
        | {"wrong": right - np.tile([1.0, 2.0, 3.0], 10) - right / 5, "right_error": 0.0, "wrong_error": 0.0}
    )
    row = scoring.likelihood(table, draws=200, rng=rng()).iloc[0]
    assert row.p_value < 1e-4 and row.ci_low > 0 and row.right_more_likely == 1 and row.sampling_error == 0


@pytest.mark.parametrize("family", ["mdm", "ar"])
def test_the_probe_ranks_first_tokens_and_gives_their_entropy(networks, tokenizer, family):
    table = scoring.probe(networks[family], tokenizer, ["Ada Quill is", "Bo"], top=len(tokenizer))
    assert list(table.columns) == ["prompt", "rank", "token", "probability", "entropy"]
    for _, rows in table.groupby("prompt"):
        assert rows.probability.sum() == pytest.approx(1, abs=1e-5)
        assert rows.probability.is_monotonic_decreasing and rows["rank"].iloc[0] == 1
        assert rows.entropy.iloc[0] == pytest.approx(-(rows.probability * np.log(rows.probability)).sum(), abs=1e-4)
        assert 0 < rows.entropy.iloc[0] <= math.log(len(tokenizer)) + 1e-6


def test_prompts_of_general_knowledge_have_their_answers_and_others_need_none(root, tmp_path):
    general = probing.given_prompts(root / "data/prompts/general.txt", 8)
    assert len(general) == 8 and general[0] == ("The capital of France is", "Paris")
    assert all(answer for _, answer in probing.given_prompts(root / "data/prompts/general.txt", 99))
    (tmp_path / "own.txt").write_text("It rains\nTwo and two are => four\n")
    assert probing.given_prompts(tmp_path / "own.txt", 9) == [("It rains", None), ("Two and two are", "four")]
