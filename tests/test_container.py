"""The Dockerfile: from the same pins, for nobody's root. `make container-test` builds it and runs what came out."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from study_fixtures import command, copy

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


STAND_IN = """#!/bin/sh
[ "$1" = --version ] && echo "apptainer version 1.4.0" && exit
echo "$@" >> "$TOLD"
while [ "$1" != "$IMAGE" ]; do shift; done
shift
exec "$@"
"""


def test_jobs_are_handed_to_apptainer_with_the_configured_image(root, tmp_path):
    """To a stand-in, which notes what it is told and runs it here: that the rules know the image."""
    folder, image = copy(root, tmp_path / "project"), str(tmp_path / "image.sif")
    Path(image).touch()
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, content in {"apptainer": STAND_IN, "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n'}.items():
        (tools / name).write_text(content)
        (tools / name).chmod(0o755)
    given = {"PATH": f"{tools}:{os.environ['PATH']}", "TOLD": str(tmp_path / "told"), "IMAGE": image}
    words = command("results/smoke/data/facts.jsonl", "--sdm", "apptainer", "--config", f"container={image}")
    subprocess.run(words, cwd=folder, env={**os.environ, **given}, check=True, capture_output=True)
    told = (tmp_path / "told").read_text()
    assert f" {image} " in told and "prepare_generated.py" in told
    assert (folder / "results/smoke/data/facts.jsonl").stat().st_size > 0


def builder(*words, **options):
    """Run buildah without a daemon or a network of its own; what it said, on failure too."""
    done = subprocess.run(["buildah", *words], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def image(root, tmp_path_factory, request):
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
    request.addfinalizer(lambda: subprocess.run(["buildah", "rmi", "--force", IMAGE, BASE], check=False))
    empty = builder("from", "scratch")
    builder("add", "--quiet", empty, str(system), "/")
    builder("commit", "--quiet", "--rm", empty, BASE)
    shutil.rmtree(system)
    builder(
        *("build", "--isolation", "chroot", "--network", "host", "--build-arg", f"BASE={BASE}", "--tag", IMAGE),
        *as_pip_here(tmp_path_factory.mktemp("pip")),
        str(root),
    )
    return IMAGE


def as_pip_here(folder):
    """Options that let pip in the build find what pip finds here: its settings, and the files that these name."""
    told = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    settings = {key.rpartition(".")[2]: value for key, value in re.findall(r"^(\S+?)='(.*)'$", told.stdout, re.M)}
    lines = ["[global]", *(f"{key} = {value}" for key, value in settings.items())]
    (folder / "pip.conf").write_text("\n".join(lines))
    places = {place for value in settings.values() for place in re.findall(r"(?:^|\s)(/\S+)", value)}
    # An index may name files beside it.
    places |= {str(Path(place).parent) for value in settings.values() for place in re.findall(r"file://(/\S+)", value)}
    shared = {place: place for place in places if Path(place).exists()} | {str(folder / "pip.conf"): "/etc/pip.conf"}
    return [word for here, there in shared.items() for word in ("--volume", f"{here}:{there}:ro")]


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
    targets = ("results/smoke/figures/dataset.svg", "results/smoke/models/mdm/preflight.json")
    run("snakemake", *targets, "--cores", "2", "--configfile", "studies/smoke.yaml")
    assert run("sh", "-c", f"cat {targets[1]}").startswith("{")
