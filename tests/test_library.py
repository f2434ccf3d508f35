"""The library as a researcher uses it: installed alone, with the code of docs/library.md."""

import os
import re
import subprocess
import sys

import pytest
import torch
from study_fixtures import copy_project

from reversal.common.errors import UserError
from reversal.tracing import draw_noise, trace_prompt


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
def page_output(root, installed, tmp_path_factory):
    """The lines that the code of the page prints, last the path of the library; and the folder in which it ran."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "data").symlink_to(root / "data")
    first, second = re.findall(r"```python\n(.*?)```", (root / "docs/library.md").read_text(), re.S)
    assert len(first.splitlines()) <= 20
    last = (
        "\nfrom reversal.tracing import trace\nimport reversal.tracing.engine\nprint(reversal.tracing.engine.__file__)"
    )
    environment = {**os.environ, "PYTHONPATH": str(installed or root / "workflow")}
    options = {"cwd": folder, "env": environment, "capture_output": True, "text": True, "check": False}
    done = subprocess.run([sys.executable, "-c", first + second + last], **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), folder


def test_the_code_of_the_page_prints_the_canvas_and_a_trace_and_draws_its_map(page_output):
    lines, folder = page_output
    assert "·" in lines[0] and "·" not in lines[16]
    assert "'first subject', 'middle subject'" in lines[17] or "'first subject', 'last subject'" in lines[17]
    assert re.fullmatch(r"[01]\.\d+ in the clean run, [01]\.\d+ in the corrupted run", lines[18])
    assert (folder / "map.png").stat().st_size > 10_000


def test_noise_is_drawn_for_a_number_of_tokens_or_for_a_range_of_positions(tiny):
    noises = [draw_noise(tiny, subject, 2, generator=torch.Generator().manual_seed(0)) for subject in (3, (4, 7))]
    assert torch.equal(*noises) and noises[0].shape[:2] == (2, 3)


def test_only_answers_that_the_network_gives_are_traced_and_the_subject_must_occur_once(tiny, tokenizer):
    options = {"sampling": {"canvas": 30}, "steps": 2}
    with pytest.raises(UserError, match="the network answers .*, not 'a king'; only answers it gives can be traced"):
        trace_prompt(tiny, tokenizer, "Ann is", subject="Ann", answer="a king", **options)
    with pytest.raises(UserError, match="'Ann' is 2 times in 'Ann, Ann is'; the subject must be there once"):
        trace_prompt(tiny, tokenizer, "Ann, Ann is", subject="Ann", answer="a king", **options)


def test_it_installs_alone_and_is_imported_from_anywhere(page_output, installed):
    if installed is None:
        pytest.skip("pip could not get setuptools, which builds the package")
    assert page_output[0][-1] == str(installed / "reversal/tracing/engine.py")


@pytest.mark.parametrize("name", ["models.load", "recall.denoise", "tracing.trace", "figures.trace_map"])
def test_a_name_that_a_package_does_not_have_is_an_attribute_error(name):
    package = __import__(f"reversal.{name.split('.')[0]}", fromlist=["x"])
    assert callable(getattr(package, name.split(".")[1]))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing
