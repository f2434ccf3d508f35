"""The page on people, rows and models of one's own: its files are written and its commands run, as a reader would."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest
from study_fixtures import copy


@pytest.fixture(scope="module")
def page(root):
    return (root / "docs/your-own.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(root, page, tmp_path_factory):
    """A checkout with the files that the page shows."""
    folder = copy(root, tmp_path_factory.mktemp("own"))
    for name, content in re.findall(r"```\w+\n# (my/\S+)\n(.*?)```", page, re.S):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def commands(page, section):
    """The commands of a section, those of the environment with this one's Python."""
    [text] = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", page, re.S | re.M)
    shown = "".join(re.findall(r"```sh\n(.*?)```", text, re.S))
    return shown.replace(".venv/bin/python", shlex.quote(sys.executable)).replace(
        ".venv/bin/snakemake", f"{shlex.quote(sys.executable)} -m snakemake"
    )


@pytest.mark.parametrize("section", ["People", "Rows", "Models", "Workflow"])
def test_the_commands_of_the_page_run(folder, page, section):
    shown = commands(page, section)
    assert shown.count(" -m snakemake ") == 2 and " -n\n" in shown
    own = {**os.environ, "PYTHONPATH": str(folder / "workflow")}
    done = subprocess.run(["bash", "-ec", shown], cwd=folder, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stderr + done.stdout)[-3000:]
    left = {
        "People": lambda: "falconer" in (folder / "my/words/roles.txt").read_text(),
        "Rows": lambda: len((folder / "results/my-rows/data/facts.jsonl").read_text().splitlines()) == 9,
        "Workflow": lambda: (folder / "my/workflow/results/people.txt").read_text().strip() == "30",
        "Models": lambda: (
            json.loads((folder / "results/my-model/models/ar/base/config.json").read_text())["model_type"] == "gpt2"
        ),
    }
    assert left[section]()
