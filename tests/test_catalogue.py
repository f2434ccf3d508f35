"""The requirements of Snakemake's catalogue, CITATION.cff, and errors of a workflow used as a module."""

import re
import subprocess
import sys
import tomllib

import yaml
from study_fixtures import copy_project, count_planned_jobs


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


def test_the_cited_version_is_that_of_the_library(root):
    citation = yaml.safe_load((root / "CITATION.cff").read_text())
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert citation["version"] == project["version"] and citation["license"] == project["license"]


def test_an_error_in_a_module_s_configuration_gives_one_line(root, tmp_path):
    (tmp_path / "Snakefile").write_text(
        f"module theirs:\n    snakefile: {str(root / 'Snakefile')!r}\n"
        "    config: {'study': 'mine', 'sampling': {'stesp': 3}}\n\nuse rule * from theirs as theirs_*\n"
    )
    command = [sys.executable, "-m", "snakemake", "-n", "--cores", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "error: module theirs: sampling.stesp is not a key; did you mean steps?" in done.stderr
