"""The Dockerfile uses the project's pins and runs without root. `make container-test` builds and runs the image."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from study_fixtures import command, copy_project

BASE, IMAGE = "localhost/reversal-test-base", "localhost/reversal-test"
BUILD_TOOLS = ("gcc", "cc", "g++", "make", "ld", "cargo", "pip")


def test_the_image_is_made_from_the_pins_of_the_project_and_runs_without_root(root):
    lines = (root / "Dockerfile").read_text().splitlines()
    assert sum(line.startswith("FROM ${BASE}") for line in lines) == 2  # a build stage and the image
    assert not any("apt-get" in line or re.search(r"[<>=]=\d", line) for line in lines)
    assert any(line.startswith("COPY requirements.txt") for line in lines)
    [user] = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert user.split(":")[0].isdigit() and int(user.split(":")[0]) > 0
    assert (root / "requirements.txt").read_text().count("\n# checks\n") == 1  # the part that the Dockerfile leaves out


FAKE_APPTAINER = """#!/bin/sh
[ "$1" = --version ] && echo "apptainer version 1.4.0" && exit
echo "$@" >> "$CALLS"
while [ "$1" != "$IMAGE" ]; do shift; done
shift
exec "$@"
"""


def test_jobs_run_in_apptainer_with_the_configured_image(root, tmp_path):
    """A fake apptainer records its arguments and runs the job here."""
    folder, image = copy_project(root, tmp_path / "project"), str(tmp_path / "image.sif")
    Path(image).touch()
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, content in {"apptainer": FAKE_APPTAINER, "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n'}.items():
        (tools / name).write_text(content)
        (tools / name).chmod(0o755)
    changes = {"PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls"), "IMAGE": image}
    words = command("results/smoke/data/facts.jsonl", "--sdm", "apptainer", "--config", f"container={image}")
    subprocess.run(words, cwd=folder, env={**os.environ, **changes}, check=True, capture_output=True)
    calls = (tmp_path / "calls").read_text()
    assert f" {image} " in calls and "prepare_generated.py" in calls
    assert (folder / "results/smoke/data/facts.jsonl").stat().st_size > 0


def run_buildah(*words, **options):
    """The output of buildah, which needs no daemon."""
    done = subprocess.run(["buildah", *words], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def image(root, tmp_path_factory, request):
    """The image, built on a Debian that is bootstrapped from its packages, since a registry may be out of reach."""
    for tool in ("buildah", "debootstrap"):
        if not shutil.which(tool):
            pytest.skip(f"no {tool}: apt-get install buildah debootstrap")
    if os.getuid():
        pytest.skip("debootstrap needs root")
    system = tmp_path_factory.mktemp("base") / "system"
    packages = "--include=python3-venv,ca-certificates"
    done = subprocess.run(
        ["debootstrap", "--variant=minbase", packages, "bookworm", str(system)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"debootstrap found no packages: {(done.stdout + done.stderr).splitlines()[-1]}")
    request.addfinalizer(lambda: subprocess.run(["buildah", "rmi", "--force", IMAGE, BASE], check=False))
    empty = run_buildah("from", "scratch")
    run_buildah("add", "--quiet", empty, str(system), "/")
    run_buildah("commit", "--quiet", "--rm", empty, BASE)
    shutil.rmtree(system)
    run_buildah(
        *("build", "--isolation", "chroot", "--network", "host", "--build-arg", f"BASE={BASE}", "--tag", IMAGE),
        *pip_options(tmp_path_factory.mktemp("pip")),
        str(root),
    )
    return IMAGE


def pip_options(folder):
    """Build options that give pip in the build the settings of pip here, and the files that they name."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    settings = {key.rpartition(".")[2]: value for key, value in re.findall(r"^(\S+?)='(.*)'$", listed.stdout, re.M)}
    lines = ["[global]", *(f"{key} = {value}" for key, value in settings.items())]
    (folder / "pip.conf").write_text("\n".join(lines))
    paths = {path for value in settings.values() for path in re.findall(r"(?:^|\s)(/\S+)", value)}
    # An index may name files in its own folder.
    paths |= {str(Path(path).parent) for value in settings.values() for path in re.findall(r"file://(/\S+)", value)}
    volumes = {path: path for path in paths if Path(path).exists()} | {str(folder / "pip.conf"): "/etc/pip.conf"}
    return [word for source, target in volumes.items() for word in ("--volume", f"{source}:{target}:ro")]


@pytest.fixture(scope="module")
def run(image):
    """A function that runs a command in a container of the image, as the image's user."""
    container = run_buildah("from", image)
    yield lambda *words: run_buildah("run", "--isolation", "chroot", container, "--", *words)
    run_buildah("rm", container)


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
