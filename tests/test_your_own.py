"""docs/your-own.md: the files that it shows are written and its commands are run, as a reader would."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest
from study_fixtures import copy_project


@pytest.fixture(scope="module")
def page(root):
    return (root / "docs/your-own.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(root, page, tmp_path_factory):
    """A copy of the project with the files that the page shows."""
    folder = copy_project(root, tmp_path_factory.mktemp("own"))
    for name, content in re.findall(r"```\w+\n# (my/\S+)\n(.*?)```", page, re.S):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return folder


def extract_commands(page, section):
    """The commands of a section, run by the Python of the tests."""
    [text] = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", page, re.S | re.M)
    commands = "".join(re.findall(r"```sh\n(.*?)```", text, re.S))
    return commands.replace(".venv/bin/python", shlex.quote(sys.executable)).replace(
        ".venv/bin/snakemake", f"{shlex.quote(sys.executable)} -m snakemake"
    )


@pytest.mark.parametrize("section", ["People", "Language", "Rows", "Models", "Workflow"])
def test_the_commands_of_the_page_run(folder, page, section):
    commands = extract_commands(page, section)
    assert commands.count(" -m snakemake ") == 2 and " -n\n" in commands
    environment = {**os.environ, "PYTHONPATH": str(folder / "workflow")}
    options = {"cwd": folder, "env": environment, "capture_output": True, "text": True, "check": False}
    done = subprocess.run(["bash", "-ec", commands], **options)
    assert done.returncode == 0, (done.stderr + done.stdout)[-3000:]
    results = {
        "People": lambda: "falconer" in (folder / "my/words/roles.txt").read_text(),
        "Language": lambda: all(
            re.fullmatch(r"die \w+, die (den|das|die) \w+ \w+", json.loads(line)["description"])
            for line in (folder / "results/deutsch/data/facts.jsonl").read_text(encoding="utf-8").splitlines()
        ),
        "Rows": lambda: len((folder / "results/my-rows/data/facts.jsonl").read_text().splitlines()) == 9,
        "Workflow": lambda: (folder / "my/workflow/results/people.txt").read_text().strip() == "30",
        "Models": lambda: (
            json.loads((folder / "results/my-model/models/ar/base/config.json").read_text())["model_type"] == "gpt2"
        ),
    }
    assert results[section]()
