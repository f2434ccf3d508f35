"""The requirements of Snakemake's catalogue, CITATION.cff, and errors of a workflow used as a module."""

import os
import re
import shutil
import subprocess
import sys
import tomllib

import yaml
from study_fixtures import copy_project, count_planned_jobs

from reversal.paper import provenance


def test_the_catalogue_finds_a_workflow_its_settings_and_how_to_configure_it(root, tmp_path):
    """The catalogue looks for workflow/Snakefile; ours includes the Snakefile at the top."""
    folder = copy_project(root, tmp_path / "project")
    jobs, catalogue_jobs = count_planned_jobs(folder), count_planned_jobs(folder, "--snakefile", "workflow/Snakefile")
    assert catalogue_jobs.pop("everything") == jobs.pop("all") == 1
    assert catalogue_jobs.pop("all", 0) == 0 and catalogue_jobs == jobs and "post" in jobs
    usage = yaml.safe_load((root / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    assert usage["report"] and usage["software-stack-deployment"]["conda"]
    for page in ("config/README.md", "README.md"):
        text = (root / page).read_text()
        assert "snakemake" in text.lower() and "workflow" in text.lower()
        for link in re.findall(r"\]\(([^)#:]+)[)#]", text):
            assert (root / page).parent.joinpath(link).exists(), f"{page}: {link}"


def test_version_licence_and_authors_are_the_same_everywhere(root):
    citation, config = (yaml.safe_load((root / name).read_text()) for name in ("CITATION.cff", "config.yaml"))
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert citation["version"] == project["version"] and citation["license"] == project["license"]
    assert re.search(r"^## (.*)$", (root / "CHANGELOG.md").read_text(), re.M)[1] == project["version"]
    [author] = citation["authors"]
    assert f"{author['given-names']} {author['family-names']}" == config["paper"]["author"]


def test_the_same_checks_run_by_hand_before_a_commit_and_in_the_cloud(root):
    [recipe] = re.findall(r"^lint: env\n((?:\t.*\n)+)", (root / "Makefile").read_text(), re.M)
    hooks = yaml.safe_load((root / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    checks = {line.strip().replace("$(BIN)", ".venv/bin") for line in recipe.splitlines()}
    for hook in hooks:
        assert any(check.startswith(hook["entry"]) for check in checks), hook["entry"]
    assert len(hooks) == len(checks)
    jobs = yaml.safe_load((root / ".github/workflows/ci.yml").read_text())["jobs"]
    assert {"make lint", "make test"} <= {step.get("run") for step in jobs["test"]["steps"]}
    page = (root / "profiles/README.md").read_text()
    assert all(f"]({folder.name}/config.yaml)" in page for folder in (root / "profiles").iterdir() if folder.is_dir())


def test_the_conda_environment_installs_what_the_tests_run_with(root):
    [python, pip, installed] = yaml.safe_load((root / "envs/reversal.yaml").read_text())["dependencies"]
    assert python.startswith("python=3.") and pip == "pip"
    assert [(root / "envs" / line.split()[1]).resolve() for line in installed["pip"]] == [root / "requirements.txt"]


DEPLOYED = """
configfile: "config/config.yaml"

module theirs:
    snakefile: github("owner/name", path="workflow/Snakefile", tag="v1.0.0")
    config: config

use rule * from theirs
"""


def test_a_workflow_that_snakedeploy_sets_up_in_an_empty_folder_runs(root, tmp_path):
    """Its rules come from a tag of a repository, here a local one, and not from a folder beside the library."""
    project, folder = copy_project(root, tmp_path / "project"), tmp_path / "deployed"
    config = tmp_path / "gitconfig"
    settings = f'[url "file://{project}"]\ninsteadOf = https://github.com/owner/name\n[user]\nname = A\nemail = a@b.c\n'
    config.write_text(settings)
    changes = {"GIT_CONFIG_GLOBAL": str(config), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": ""}
    options = {"env": os.environ | changes, "capture_output": True, "text": True, "check": False}
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"], ["tag", "v1.0.0"]):
        assert subprocess.run(["git", "-C", str(project), *command], **options).returncode == 0
    for part in ("config", "profiles"):  # what snakedeploy copies, beside the Snakefile that it writes
        shutil.copytree(root / part, folder / part)
    (folder / "workflow").mkdir()
    (folder / "workflow/Snakefile").write_text(DEPLOYED)
    target = "results/default/data/facts.jsonl"
    for arguments in (["-n"], [target]):
        command = [sys.executable, "-m", "snakemake", "--cores", "1", *arguments]
        done = subprocess.run(command, cwd=folder, **options)
        assert done.returncode == 0, done.stderr[-2000:]
        # The study of the article makes the article, wherever it runs.
        assert "-n" not in arguments or "figure_seeds_crossover" in done.stdout + done.stderr
    facts = (folder / target).read_text().splitlines()
    assert len(facts) == 3 * 24 + 2 * 6
    [copy] = (folder / ".snakemake/projects").iterdir()
    assert provenance.commit(copy) == copy.name[:12]


def test_an_error_in_a_module_s_configuration_gives_one_line(root, tmp_path):
    (tmp_path / "Snakefile").write_text(
        f"module theirs:\n    snakefile: {str(root / 'Snakefile')!r}\n"
        "    config: {'study': 'mine', 'sampling': {'stesp': 3}}\n\nuse rule * from theirs as theirs_*\n"
    )
    command = [sys.executable, "-m", "snakemake", "-n", "--cores", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "error: module theirs: sampling.stesp is not a key; did you mean steps?" in done.stderr
