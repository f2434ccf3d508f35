"""The library as a researcher uses it: installed alone, from the lines that docs/library.md shows."""

import os
import re
import subprocess
import sys

import pytest
import torch
from studying import copy

from reversal.common.errors import UserError
from reversal.tracing import draw_noise, trace_prompt


def test_the_lines_of_the_page_run_and_show_a_denoised_canvas_a_trace_and_its_map(root, tmp_path):
    first, second = re.findall(r"```python\n(.*?)```", (root / "docs/library.md").read_text(), re.S)
    assert len(first.splitlines()) <= 20
    (tmp_path / "data").symlink_to(root / "data")
    found = {**os.environ, "PYTHONPATH": str(root / "workflow")}
    command = [sys.executable, "-c", first + second]
    done = subprocess.run(command, cwd=tmp_path, env=found, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    assert "·" in shown[0] and "·" not in shown[16]
    assert "'first subject', 'middle subject'" in shown[17] or "'first subject', 'last subject'" in shown[17]
    assert re.fullmatch(r"[01]\.\d+ when clean, [01]\.\d+ when hidden", shown[18])
    assert (tmp_path / "map.png").stat().st_size > 10_000


def test_noise_is_drawn_for_a_number_of_tokens_or_for_a_range_of_positions(tiny):
    draw = [draw_noise(tiny, of, 2, generator=torch.Generator().manual_seed(0)) for of in (3, (4, 7))]
    assert torch.equal(*draw) and draw[0].shape[:2] == (2, 3)


def test_only_what_a_network_says_is_traced_and_the_subject_is_there_once(tiny, tokenizer):
    ask = {"sampling": {"canvas": 30}, "steps": 2}
    with pytest.raises(UserError, match="the network goes on with .*, not with 'a king'; only what it says is traced"):
        trace_prompt(tiny, tokenizer, "Ann is", subject="Ann", answer="a king", **ask)
    with pytest.raises(UserError, match="'Ann' is 2 times in 'Ann, Ann is'; the subject is there once"):
        trace_prompt(tiny, tokenizer, "Ann, Ann is", subject="Ann", answer="a king", **ask)


def test_it_installs_alone_and_is_found_from_anywhere(root, tmp_path):
    source, target = copy(root, tmp_path / "source"), tmp_path / "target"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(source)]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode and "setuptools" in done.stderr:
        pytest.skip("pip could not fetch setuptools, which builds the package")
    assert done.returncode == 0, done.stderr
    code = "from reversal.tracing import trace; import reversal.tracing.engine as found; print(found.__file__)"
    elsewhere = {**os.environ, "PYTHONPATH": str(target)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=elsewhere, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == str(target / "reversal/tracing/engine.py"), done.stderr


@pytest.mark.parametrize("name", ["models.load", "recall.denoise", "tracing.trace", "figures.trace_map"])
def test_a_name_that_a_package_does_not_offer_is_an_attribute_error(name):
    package = __import__(f"reversal.{name.split('.')[0]}", fromlist=["x"])
    assert callable(getattr(package, name.split(".")[1]))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing
