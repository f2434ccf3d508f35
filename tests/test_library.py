"""The library as a researcher uses it: installed alone, with the code of examples/tour.ipynb."""

import importlib
import inspect
import json
import os
import pydoc
import re
import subprocess
import sys

import pytest
import torch
from matplotlib.text import Text
from study_fixtures import copy_project

from reversal.common.errors import UserError
from reversal.data.facts import Row
from reversal.figures import trace_map
from reversal.models import is_diffusion, load
from reversal.models.network import new
from reversal.recall import Sampling, answer, denoise
from reversal.recall.evaluation import complete_split
from reversal.tracing import draw_noise, engine, trace, trace_prompt


@pytest.fixture(scope="module")
def installed(root, tmp_path_factory):
    """The folder into which pip installed the library alone; None if pip could not get setuptools, which builds it."""
    source, target = copy_project(root, tmp_path_factory.mktemp("source")), tmp_path_factory.mktemp("target")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(source)]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode and "setuptools" in done.stderr:
        return None
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def tour(root, installed, tmp_path_factory):
    """The lines that the notebook prints, last the path of the library; and the folder in which it ran."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "examples").mkdir()
    (folder / "data").symlink_to(root / "data")
    cells = json.loads((root / "examples/tour.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    code.append("trace_map(traced).savefig('map.png')\nimport reversal\nprint(reversal.__file__)")
    environment = {**os.environ, "PYTHONPATH": str(installed or root / "workflow"), "MPLBACKEND": "agg"}
    options = {"cwd": folder / "examples", "env": environment, "capture_output": True, "text": True, "check": False}
    done = subprocess.run([sys.executable, "-c", "\n".join(code)], **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), folder / "examples", cells


def test_the_tour_runs_and_shows_what_it_prints(tour):
    lines, folder, cells = tour
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    shown = "".join("".join(output["text"]) for output in outputs if "text" in output).splitlines()
    numbers = re.compile(r"-?\d+\.\d*")  # may differ in the last digit on another machine
    assert [numbers.sub("#", line) for line in lines[:20]] == [numbers.sub("#", line) for line in shown[:20]]
    assert "·" in lines[2] and "·" not in lines[18]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert (folder / "map.png").stat().st_size > 10_000


@pytest.mark.parametrize("package", ["models", "recall", "tracing", "figures"])
def test_the_public_names_of_a_package_are_listed_described_and_typed(root, package):
    module = importlib.import_module(f"reversal.{package}")
    page = (root / "docs/library.md").read_text(encoding="utf-8")
    assert module.__doc__ and dir(module) == sorted(module.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing
    for name in module.__all__:
        value = getattr(module, name)
        assert value.__doc__ and name in pydoc.plain(pydoc.render_doc(module)), name
        assert f"`reversal.{package}.{name}" in page or name in ("is_diffusion", "mask_id", "Sampling"), name
        parameters = inspect.signature(value).parameters.values()
        assert all(p.annotation is not p.empty or p.kind == p.VAR_KEYWORD for p in parameters), name


def make_network(tokenizer, *, causal, heads=2):
    return new(causal=causal, vocab=len(tokenizer), width=16, layers=2, heads=heads, mlp=16, eos=0, seed=0)


def test_one_call_answers_a_prompt_with_either_family(tiny, tokenizer):
    net, [row] = tiny, [Row("Ann", 0, "Ann is", " a king", (0, 3), (1, 7))]
    text = answer(net, tokenizer, row.prompt, canvas=12, steps=4)
    steps = 4 if is_diffusion(net) else None
    [completion] = complete_split(net, tokenizer, [row], Sampling(canvas=12), split="", steps=steps)
    assert text == completion["generation"].strip()
    with pytest.raises(UserError, match="the prompt has .* tokens, but canvas is 2; set it to more"):
        answer(net, tokenizer, "Ann is the queen", canvas=2)


def test_denoising_keeps_the_logits_from_which_each_token_was_revealed(tokenizer):
    net = make_network(tokenizer, causal=False)
    result = denoise(net, [tokenizer("Ann is")["input_ids"]], canvas=9, steps=5, keep_logits=True)
    for position in (result.step[0] >= 0).nonzero()[:, 0].tolist():
        step = result.step[0, position]
        probability = result.logits[step, 0, position].double().softmax(-1)
        assert probability.argmax() == result.canvas[0, position]
        assert probability.max().item() == pytest.approx(result.confidence[0, position].item(), abs=1e-4)


WRONG_CALLS = [
    (lambda net, ar: denoise(ar, [[1, 2]], canvas=5, steps=2), "denoise needs a diffusion network"),
    (lambda net, ar: trace(net, [1, 2, 3], subject=(9, 2), answer={1: 1}), "subject is 9–2; it needs to be a range"),
    (lambda net, ar: draw_noise(net, (5, 2), 2), r"subject is \(5, 2\) and draws 2; allowed: one token"),
    (
        lambda net, ar: trace(net, [1, 2, 3], subject=(0, 2), answer={1: 1}, replacement=[4]),
        "1 tokens cannot replace a subject of 2",
    ),
    (
        lambda net, ar: trace(net, [1, 2], subject=(0, 1), answer={1: 1}, replacement=[4], noise=draw_noise(net, 1, 1)),
        "both noise and replacement are given",
    ),
]


@pytest.mark.parametrize("call, message", WRONG_CALLS, ids=[message[:25] for _, message in WRONG_CALLS])
def test_a_wrong_call_gives_an_error_of_ours(tokenizer, call, message):
    with pytest.raises(UserError, match=message):
        call(make_network(tokenizer, causal=False), make_network(tokenizer, causal=True))


def test_a_trace_by_swapping_and_masking_is_drawn_under_its_prompt_and_other_kinds_are_refused(root):
    net, tokenizer = load(root / "data/base/mdm")
    prompt = {"prompt": "The records speak of Rosalind Talbot as", "subject": "Rosalind Talbot"}
    said = answer(net, tokenizer, prompt["prompt"], canvas=22, guidance=0.8)
    options = {"answer": said, "sampling": {"canvas": 22, "guidance": 0.8}}
    options["corruptions"] = {"swap": ["state"], "mask": ["state"]}
    traced = trace_prompt(net, tokenizer, **prompt, **options, swap="Adela Abbot")
    assert traced.effects().shape[1:] == traced.effects(corruption="mask").shape[1:]
    texts = [text.get_text() for text in trace_map(traced).findobj(Text)]
    assert any(prompt["prompt"] in text for text in texts) and not any("reverse" in text for text in texts)
    with pytest.raises(UserError, match="kind 'mlp' was not traced by corruption 'swap'; this trace has swap: state"):
        trace_map(traced, kind="mlp")
    with pytest.raises(UserError, match=r"is not traced \(swap: give swap=, another subject of as many tokens\)$"):
        trace_prompt(net, tokenizer, **prompt, **options)


@pytest.mark.parametrize("heads", [1, 4])
def test_restoring_all_heads_is_restoring_attention_and_one_head_alone_is_a_part_of_it(tokenizer, heads):
    net = make_network(tokenizer, causal=False, heads=heads)
    ids = torch.tensor(tokenizer("Ann is the queen of all")["input_ids"])
    options = {"subject": (0, 2), "answer": {len(ids) - 1: 5}}
    by_head = trace(net, ids, **options, kind="head")
    assert by_head.restored.shape == (heads, 2)
    problem = engine.Problem(
        engine.embed(net, ids),
        engine.corrupt_subject(net, ids, options["subject"]),
        options["answer"],
        [tuple(range(len(ids)))],
    )
    [runs] = engine.restore(net, [problem], kind="attn")
    whole = engine.score_runs(runs).restored
    if heads == 1:
        torch.testing.assert_close(by_head.restored, whole, rtol=1e-4, atol=1e-7)
    else:
        assert not torch.allclose(by_head.restored[0], by_head.restored[1])


def test_noise_is_drawn_for_a_number_of_tokens_or_for_a_range_of_positions(tiny):
    noises = [draw_noise(tiny, subject, 2, generator=torch.Generator().manual_seed(0)) for subject in (3, (4, 7))]
    assert torch.equal(*noises) and noises[0].shape[:2] == (2, 3)


def test_only_answers_that_the_network_gives_are_traced_and_the_subject_must_occur_once(tiny, tokenizer):
    options = {"sampling": {"canvas": 30}, "steps": 2}
    with pytest.raises(UserError, match="the network answers .*, not 'a king'; only answers it gives can be traced"):
        trace_prompt(tiny, tokenizer, "Ann is", subject="Ann", answer="a king", **options)
    with pytest.raises(UserError, match="'Ann' is 2 times in 'Ann, Ann is'; the subject must be there once"):
        trace_prompt(tiny, tokenizer, "Ann, Ann is", subject="Ann", answer="a king", **options)


def test_it_installs_alone_and_is_imported_from_anywhere(tour, installed):
    if installed is None:
        pytest.skip("pip could not get setuptools, which builds the package")
    assert tour[0][-1] == str(installed / "reversal/__init__.py")
