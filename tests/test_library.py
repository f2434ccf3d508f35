"""The library as a researcher uses it: installed alone, from the lines that docs/library.md shows."""

import os
import re
import subprocess
import sys

import pytest
import torch
from study_fixtures import copy

from reversal.common.errors import UserError
from reversal.tracing import draw_noise, trace_prompt


@pytest.fixture(scope="module")
def installed(root, tmp_path_factory):
    """Where pip put the library, with nothing else; None where it could not fetch setuptools, which builds it."""
    source, target = copy(root, tmp_path_factory.mktemp("source")), tmp_path_factory.mktemp("target")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(source)]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode and "setuptools" in done.stderr:
        return None
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def shown(root, installed, tmp_path_factory):
    """What the lines of the page print and, last, where their library was; and the folder where they ran."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "data").symlink_to(root / "data")
    first, second = re.findall(r"```python\n(.*?)```", (root / "docs/library.md").read_text(), re.S)
    assert len(first.splitlines()) <= 20
    last = "\nfrom reversal.tracing import trace\nimport reversal.tracing.engine as found\nprint(found.__file__)"
    found_at = {**os.environ, "PYTHONPATH": str(installed or root / "workflow")}
    run = {"cwd": elsewhere, "env": found_at, "capture_output": True, "text": True, "check": False}
    done = subprocess.run([sys.executable, "-c", first + second + last], **run)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), elsewhere


def test_the_lines_of_the_page_run_and_show_a_denoised_canvas_a_trace_and_its_map(shown):
    lines, folder = shown
    assert "·" in lines[0] and "·" not in lines[16]
    assert "'first subject', 'middle subject'" in lines[17] or "'first subject', 'last subject'" in lines[17]
    assert re.fullmatch(r"[01]\.\d+ when clean, [01]\.\d+ when hidden", lines[18])
    assert (folder / "map.png").stat().st_size > 10_000


def test_noise_is_drawn_for_a_number_of_tokens_or_for_a_range_of_positions(tiny):
    draw = [draw_noise(tiny, of, 2, generator=torch.Generator().manual_seed(0)) for of in (3, (4, 7))]
    assert torch.equal(*draw) and draw[0].shape[:2] == (2, 3)


def test_only_what_a_network_says_is_traced_and_the_subject_is_there_once(tiny, tokenizer):
    ask = {"sampling": {"canvas": 30}, "steps": 2}
    with pytest.raises(UserError, match="the network goes on with .*, not with 'a king'; only what it says is traced"):
        trace_prompt(tiny, tokenizer, "Ann is", subject="Ann", answer="a king", **ask)
    with pytest.raises(UserError, match="'Ann' is 2 times in 'Ann, Ann is'; the subject is there once"):
        trace_prompt(tiny, tokenizer, "Ann, Ann is", subject="Ann", answer="a king", **ask)


def test_it_installs_alone_and_is_found_from_anywhere(shown, installed):
    if installed is None:
        pytest.skip("pip could not fetch setuptools, which builds the package")
    assert shown[0][-1] == str(installed / "reversal/tracing/engine.py")


@pytest.mark.parametrize("name", ["models.load", "recall.denoise", "tracing.trace", "figures.trace_map"])
def test_a_name_that_a_package_does_not_offer_is_an_attribute_error(name):
    package = __import__(f"reversal.{name.split('.')[0]}", fromlist=["x"])
    assert callable(getattr(package, name.split(".")[1]))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing
