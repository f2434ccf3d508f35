"""The Dockerfile: from the same pins, for nobody's root. `make container-test` builds it and runs what came out."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

BASE, IMAGE = "localhost/reversal-test-base", "localhost/reversal-test"
BUILD_TOOLS = ("gcc", "cc", "g++", "make", "ld", "cargo", "pip")


def test_the_image_is_made_from_the_pins_of_the_project_and_runs_without_root(root):
    lines = (root / "Dockerfile").read_text().splitlines()
    assert sum(line.startswith("FROM ${BASE}") for line in lines) == 2  # what builds is not what is left
    assert not any("apt-get" in line or re.search(r"[<>=]=\d", line) for line in lines)
    assert any(line.startswith("COPY requirements.txt") for line in lines)
    [user] = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert user.split(":")[0].isdigit() and int(user.split(":")[0]) > 0
    assert (root / "requirements.txt").read_text().count("\n# checks\n") == 1  # what the Dockerfile leaves out


def builder(*words, **options):
    """Run buildah without a daemon or a network of its own; what it said, on failure too."""
    done = subprocess.run(["buildah", *words], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def image(root, tmp_path_factory):
    """The image, on a Debian put together here from its packages, since no registry of images need be in reach."""
    for tool in ("buildah", "debootstrap"):
        if not shutil.which(tool):
            pytest.skip(f"no {tool}: apt-get install buildah debootstrap")
    if os.getuid():
        pytest.skip("debootstrap needs root")
    system = tmp_path_factory.mktemp("base") / "system"
    needed = "--include=python3-venv,ca-certificates"
    done = subprocess.run(
        ["debootstrap", "--variant=minbase", needed, "bookworm", str(system)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"debootstrap finds no packages: {(done.stdout + done.stderr).splitlines()[-1]}")
    empty = builder("from", "scratch")
    builder("add", "--quiet", empty, str(system), "/")
    builder("commit", "--quiet", "--rm", empty, BASE)
    shutil.rmtree(system)
    builder(
        *("build", "--isolation", "chroot", "--network", "host", "--build-arg", f"BASE={BASE}", "--tag", IMAGE),
        *as_pip_here(),
        str(root),
    )
    yield IMAGE
    builder("rmi", "--force", IMAGE, BASE)


def as_pip_here():
    """Options that let pip in the build find what pip finds here: its settings, certificates and local folders."""
    told = subprocess.run(["python3", "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    settings = {key.rpartition(".")[2]: value for key, value in re.findall(r"^(\S+?)='(.*)'$", told.stdout, re.M)}
    options = []
    for key, value in settings.items():
        options += ["--env", f"PIP_{key.upper().replace('-', '_')}={value}"]
        for place in re.findall(r"(?:file://)?(/\S+)", value):
            if Path(place).exists():
                options += ["--volume", f"{place}:{place}:ro"]
    return options


@pytest.fixture(scope="module")
def run(image):
    """A function that runs words in a container of the image, as its own user."""
    container = builder("from", image)
    yield lambda *words: builder("run", "--isolation", "chroot", container, "--", *words)
    builder("rm", container)


@pytest.mark.container
def test_the_image_has_the_pins_no_build_tools_and_no_root(root, run):
    assert run("id", "-u") == "1000"
    for tool in BUILD_TOOLS:
        assert run("sh", "-c", f"command -v {tool} || true") == "", tool
    pins = (root / "requirements.txt").read_text().split("# checks")[0]
    code = "import importlib.metadata as m, sys; print([p for p in sys.argv[1:] if m.version(p.split('==')[0])"
    code += ".split('+')[0] != p.split('==')[1]])"
    assert run("python3", "-c", code, *re.findall(r"^\S+==\S+$", pins, re.M)) == "[]"


@pytest.mark.container
def test_the_image_makes_a_study_s_data_and_a_model_s_base(run):
    targets = ("results/smoke/figures/dataset.svg", "results/smoke/models/mdm/longest_row.json")
    run("snakemake", *targets, "--cores", "2", "--configfile", "studies/smoke.yaml")
    assert run("sh", "-c", f"cat {targets[1]}").startswith("{")
