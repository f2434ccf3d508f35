"""What Snakemake's catalogue asks of a workflow, and what CITATION.cff says of it."""

import re
import subprocess
import sys
import tomllib

import yaml
from study_fixtures import copy, planned


def test_the_catalogue_finds_a_workflow_its_settings_and_how_to_configure_it(root, tmp_path):
    """It looks for workflow/Snakefile wherever there is a folder of that name; ours stands at the top."""
    folder = copy(root, tmp_path / "project")
    ours, theirs = planned(folder), planned(folder, "--snakefile", "workflow/Snakefile")
    assert theirs.pop("everything") == ours.pop("all") == 1
    assert theirs.pop("all", 0) == 0 and theirs == ours and "post" in ours
    usage = yaml.safe_load((root / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    assert usage["report"] and usage["software-stack-deployment"]["conda"]
    for page in ("config/README.md", "README.md"):
        told = (root / page).read_text()
        assert "snakemake" in told.lower() and "workflow" in told.lower()
        for link in re.findall(r"\]\(([^)#:]+)[)#]", told):
            assert (root / page).parent.joinpath(link).exists(), f"{page}: {link}"


def test_the_version_that_is_cited_is_the_library_s(root):
    cited = yaml.safe_load((root / "CITATION.cff").read_text())
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert cited["version"] == project["version"] and cited["license"] == project["license"]


def test_a_mistake_in_a_module_s_configuration_is_told_in_one_line(root, tmp_path):
    (tmp_path / "Snakefile").write_text(
        f"module theirs:\n    snakefile: {str(root / 'Snakefile')!r}\n"
        "    config: {'study': 'mine', 'sampling': {'stesp': 3}}\n\nuse rule * from theirs as theirs_*\n"
    )
    command = [sys.executable, "-m", "snakemake", "-n", "--cores", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "error: module theirs: sampling.stesp is not a key; did you mean steps?" in done.stderr
