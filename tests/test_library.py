"""The library as a researcher uses it: installed alone, from the lines that docs/library.md shows."""

import os
import re
import subprocess
import sys

import pytest
from studying import copy


def test_the_lines_of_the_page_run_and_show_a_denoised_canvas_and_a_trace(root):
    [lines] = re.findall(r"```python\n(.*?)```", (root / "docs/library.md").read_text(), re.S)
    assert len(lines.splitlines()) <= 25
    done = subprocess.run([sys.executable, "-c", lines], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    assert "·" in shown[0] and "·" not in shown[8]
    assert re.fullmatch(r"0\.\d+ when clean, 0\.\d+ when hidden", shown[9])


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


@pytest.mark.parametrize("name", ["models.load", "recall.denoise", "tracing.trace"])
def test_a_name_that_a_package_does_not_offer_is_an_attribute_error(name):
    package = __import__(f"reversal.{name.split('.')[0]}", fromlist=["x"])
    assert callable(getattr(package, name.split(".")[1]))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing
