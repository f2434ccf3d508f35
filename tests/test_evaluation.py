import copy

import pandas as pd
import pytest
import torch

from reversal.data.facts import Row
from reversal.models import network, tokens
from reversal.recall import autoregressive, evaluation, masked
from reversal.recall import files as completion_files
from reversal.recall import tables as recall_tables
from reversal.recall.sampling import Sampling

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
    return tokens.train_tokenizer([row.text for row in ROWS], 290)


@pytest.fixture(scope="module")
def networks(tokenizer):
    shape = {"vocab": len(tokenizer), "width": 16, "layers": 2, "heads": 2, "mlp": 32, "eos": tokenizer.eos_token_id}
    return {"mdm": network.new(causal=False, seed=0, **shape), "ar": network.new(causal=True, seed=1, **shape)}


@pytest.mark.parametrize("family", ["mdm", "ar"])
def test_completions_record_what_was_revealed_where_and_when(networks, tokenizer, family):
    number = 4 if family == "mdm" else None
    sampling = Sampling(CANVAS, guidance=0.8)
    found = evaluation.complete_split(networks[family], tokenizer, ROWS, sampling, split="p2d_same", steps=number)
    assert [c["prompt"] for c in found] == [row.prompt for row in ROWS]
    for row, completion in zip(ROWS, found, strict=True):
        prompt = tokens.encode(tokenizer, row).prompt
        assert completion["steps"] == number and completion["reference"] == row.completion
        assert completion["correct"] == evaluation.is_correct(row.completion, completion["generation"])
        revealed = {position: token for position, token, _, _ in completion["revealed"]}
        assert list(sorted(revealed)) == list(range(prompt, prompt + len(revealed)))
        if family == "mdm":
            assert len(revealed) == CANVAS - prompt
        steps = [step for _, _, step, _ in completion["revealed"]]
        assert steps == sorted(steps)
        assert all(0 <= confidence <= 1 for *_, confidence in completion["revealed"])
        assert completion["prompt_tokens"] == prompt and len(completion["ids"]) == prompt + len(revealed)
        assert all(tokenizer.decode([completion["ids"][at]]) == token for at, token in revealed.items())


@pytest.mark.parametrize("remasking", ["none", "low_confidence"])
def test_a_completion_on_disk_restores_the_canvas_before_each_step(networks, tokenizer, remasking, tmp_path):
    sampling = {"canvas": CANVAS, "guidance": 0.8, "remasking": remasking}
    net, prompts = copy.deepcopy(networks["mdm"]), [tokenizer(row.prompt)["input_ids"] for row in ROWS]
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(12 if weight.dim() > 1 else 1)  # confidences so extreme that tokens are remasked
    found = evaluation.complete_split(net, tokenizer, ROWS, Sampling(**sampling), split="p2d_same", steps=[4, 6])
    completion_files.write(found, tmp_path / "found.jsonl")
    again = completion_files.select_completions(
        completion_files.read(tmp_path / "found.jsonl"), split="p2d_same", steps=6
    )
    done = masked.denoise(net, prompts, steps=6, **sampling)
    assert bool(len(done.remasked)) == (remasking != "none")
    for step in range(7):
        canvases = [completion_files.canvas_before(completion, step, done.mask_id) for completion in again]
        assert canvases == done.canvas_before(step).tolist()


def test_completions_are_those_of_the_module_of_each_family(networks, tokenizer):
    prompts = [tokenizer(row.prompt)["input_ids"] for row in ROWS]
    mdm = evaluation.complete_split(networks["mdm"], tokenizer, ROWS, Sampling(CANVAS), split="p2d_same", steps=3)
    canvas = masked.denoise(networks["mdm"], prompts, canvas=CANVAS, steps=3).canvas.tolist()
    for completion, prompt, ids in zip(mdm, prompts, canvas, strict=True):
        assert completion["generation"] == evaluation.decode(tokenizer, ids[len(prompt) :])
    ar = evaluation.complete_split(networks["ar"], tokenizer, ROWS, Sampling(CANVAS), split="p2d_same")
    for completion, prompt in zip(ar, prompts, strict=True):
        room = CANVAS - len(prompt)
        (ids,) = autoregressive.complete(networks["ar"], [prompt], new_tokens=room, eos=tokenizer.eos_token_id).tokens
        assert completion["generation"] == evaluation.decode(tokenizer, ids)
        assert len(completion["revealed"]) == len(ids)


def test_a_generation_ends_at_the_first_end_token(tokenizer):
    ids = tokenizer(" a tuba")["input_ids"]
    assert evaluation.decode(tokenizer, ids + [tokenizer.eos_token_id] + ids) == " a tuba"
    assert evaluation.decode(tokenizer, []) == ""


def test_a_canvas_without_room_for_an_answer_is_refused(networks, tokenizer):
    longest = max(len(tokens.encode(tokenizer, row).ids) for row in ROWS)
    message = f"p2d_same: row . has {longest} tokens with its answer, but sampling.canvas is {longest - 1}; set it to"
    with pytest.raises(ValueError, match=message):
        evaluation.complete_split(networks["mdm"], tokenizer, ROWS, Sampling(longest - 1), split="p2d_same", steps=2)


def test_completions_are_read_with_their_model_and_seed(networks, tokenizer, tmp_path):
    found = evaluation.complete_split(networks["ar"], tokenizer, ROWS, Sampling(CANVAS), split="p2d_same")
    completion_files.write(found, tmp_path / "a.jsonl")
    table = completion_files.read(tmp_path / "a.jsonl", model="ar", seed=3)
    assert list(table.columns) == ["model", "seed", *found[0]]
    assert table.generation.tolist() == [c["generation"] for c in found]
    assert [c["ids"] for c in completion_files.select_completions(table, split="p2d_same", steps=4)] == [
        c["ids"] for c in found
    ]
    assert completion_files.select_completions(table, split="d2p_same", steps=4) == []
    completion_files.write([], tmp_path / "none.jsonl")
    none = completion_files.read(tmp_path / "none.jsonl", model="ar", seed=3)
    assert len(none) == 0 and set(none) == set(table)


@pytest.mark.parametrize("family", ["mdm", "ar"])
def test_likelihoods_compare_right_and_wrong_answers_to_the_same_prompt(networks, tokenizer, family):
    def compare(right, wrong):
        found = evaluation.compare_likelihoods(
            networks[family], tokenizer, right, wrong, split="p2d_same", canvas=CANVAS, samples=8,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        return pd.DataFrame(found).assign(model=family, seed=0)

    found = compare(ROWS, WRONG)
    assert set(found.kind) == {"bound" if family == "mdm" else "exact"}
    assert (found.right < 0).all() and (found.wrong < 0).all()
    table = recall_tables.likelihood(found)
    row = table.iloc[0]
    assert (row.n, row.facts) == (3, 2)
    assert row.difference == pytest.approx((found.right - found.wrong).mean())
    assert row.ci_low < row.difference < row.ci_high
    same = recall_tables.likelihood(compare(ROWS, ROWS)).iloc[0]
    if family == "ar":
        assert same.difference == pytest.approx(0, abs=1e-5)


def test_likelihoods_after_different_prompts_are_refused(networks, tokenizer):
    with pytest.raises(ValueError, match="p2d_same: row 1 has a different prompt"):
        evaluation.compare_likelihoods(networks["ar"], tokenizer, ROWS, WRONG[::-1], split="p2d_same", canvas=CANVAS)
