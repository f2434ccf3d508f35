"""Wrong configurations: each is answered by one line that names file, key, value and what is allowed."""

import copy
import subprocess
import sys

import pytest
import yaml

from workflow.schemas import validation

REMOVE = object()
GPT2 = {"family": "autoregressive", "base": "hub"}
PINNED = {"repo": "owner/name", "revision": "0" * 40, "files": {"model.safetensors": "0" * 64}}

WRONG = [
    # (keys, value, what the line says)
    (["study"], "My Study", "study is 'My Study'; allowed: a folder name"),
    (["study"], "../elsewhere", "study is '../elsewhere'; allowed: a folder name"),
    (["study"], 7, "study is 7; allowed: a folder name"),
    (["stduy"], "x", "stduy is not a key; did you mean study?"),
    (["data", "source"], "wikipedia", "data.source is 'wikipedia'; allowed: generated or published"),
    (["data", "generated", "people_per_group"], 0, "data.generated.people_per_group is 0; allowed: a whole number"),
    (
        ["data", "generated", "people_per_group"],
        1,
        "data.generated.people_per_group is 1; allowed: a whole number from 2",
    ),
    (["data", "generated", "people_per_group"], 30.5, "data.generated.people_per_group is 30.5; allowed: a whole"),
    (["data", "generated", "test_templates"], -1, "data.generated.test_templates is -1; allowed: a whole number"),
    (["data", "generated", "seed"], "one", "data.generated.seed is 'one'; allowed: a whole number from 0 up"),
    (["data", "generated", "sed"], 1, "data.generated.sed is not a key; did you mean seed?"),
    (["data", "published", "folder"], 3, "data.published.folder is 3; allowed: a local folder, or null"),
    (["data", "published", "verify"], "yes", "data.published.verify is 'yes'; allowed: true or false"),
    (["models"], {}, "models is {}; allowed: at least one model"),
    (["models", "mdm", "family"], "gpt", "models.mdm.family is 'gpt'; allowed: diffusion or autoregressive"),
    (["models", "mdm", "base"], REMOVE, "models.mdm has no base; it needs one: bundled, pretrain"),
    (["models", "mdm", "family"], REMOVE, "models.mdm has no family; it needs one: diffusion or"),
    (["models", "mdm", "base"], "internet", "models.mdm.base is 'internet'; allowed: bundled, pretrain"),
    (["models", "mdm", "bundled"], REMOVE, "models.mdm has no bundled; it needs one: the folder"),
    (["models", "mdm", "bundle"], "x", "models.mdm.bundle is not a key; did you mean bundled?"),
    (["models", "ar"], GPT2, "models.ar has no hub; it needs one: repo, revision and files"),
    (
        ["models", "ar"],
        {**GPT2, "family": "diffusion", "hub": PINNED},
        "models.ar.family is 'diffusion'; allowed: autoregr",
    ),
    (
        ["models", "ar"],
        {**GPT2, "hub": {**PINNED, "revision": "main"}},
        "models.ar.hub.revision is 'main'; allowed: a commit",
    ),
    (
        ["models", "ar"],
        {**GPT2, "hub": {**PINNED, "repo": "gpt2"}},
        "models.ar.hub.repo is 'gpt2'; allowed: owner/name",
    ),
    (["models", "ar"], {**GPT2, "hub": {**PINNED, "files": {"m.safetensors": "abc"}}}, "is 'abc'; allowed: a SHA-256"),
    (
        ["models", "ar"],
        {"family": "autoregressive", "base": "lit_gpt"},
        "models.ar has no lit_gpt; it needs one: weights",
    ),
    (["models", "Big Model"], {"family": "diffusion", "base": "scratch"}, "'Big Model'; allowed: a name of lower-case"),
    (["seeds"], [], "seeds is []; allowed: a list of different whole numbers"),
    (["seeds"], [1, 1], "seeds is [1, 1]; allowed: a list of different whole numbers"),
    (["seeds"], 1, "seeds is 1; allowed: a list of different whole numbers"),
    (["network", "width"], 0, "network.width is 0; allowed: a whole number from 1 up"),
    (["network", "width"], 130, "network.width is 130; allowed: a multiple of twice network.heads"),
    (["network", "vocabulary"], 100, "network.vocabulary is 100; allowed: a whole number from 257 up"),
    (["pretraining", "rows"], 0, "pretraining.rows is 0; allowed: a whole number from 1 up"),
    (["training", "learning_rate"], 0, "training.learning_rate is 0; allowed: a number above 0"),
    (["training", "epochs"], 0, "training.epochs is 0; allowed: a whole number from 1 up"),
    (["training", "betas"], [0.9], "training.betas is [0.9]; allowed: two numbers"),
    (["training", "betas"], [0.9, 1.0], "training.betas[1] is 1.0; allowed: a number from 0 up, below 1"),
    (["training", "lr"], 0.1, "training.lr is not a key; known here: epochs"),
    (["training_processes"], 0, "training_processes is 0; allowed: a whole number from 1 up"),
    (["sampling", "steps"], [1, 2, 0], "sampling.steps[2] is 0; allowed: steps are whole numbers from 1 up"),
    (["sampling", "steps"], [], "sampling.steps is []; allowed: a list of different whole numbers from 1 up"),
    (["sampling", "guidance"], -1, "sampling.guidance is -1; allowed: a number from 0 up"),
    (["sampling", "order"], "greedy", "sampling.order is 'greedy'; allowed: confidence or random"),
    (["sampling", "block"], 0, "sampling.block is 0; allowed: a whole number of tokens from 1 up, or null"),
    (["likelihood", "samples"], 1, "likelihood.samples is 1; allowed: a whole number from 2 up"),
    (["statistics", "bootstrap_draws"], 5, "statistics.bootstrap_draws is 5; allowed: a whole number from 100 up"),
    (["precision"], "float16", "precision is 'float16'; allowed: float32 or bfloat16"),
]


@pytest.fixture(scope="module")
def default(root):
    return yaml.safe_load((root / "config.yaml").read_text())


def changed(config, keys, value):
    config = copy.deepcopy(config)
    inner = config
    for key in keys[:-1]:
        inner = inner[key]
    if value is REMOVE:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    return config


def merged(config, overlay):
    """As Snakemake lays an overlay over the configuration."""
    if not isinstance(overlay, dict):
        return overlay
    below = config if isinstance(config, dict) else {}
    return below | {key: merged(below.get(key), value) for key, value in overlay.items()}


@pytest.mark.parametrize("keys, value, told", WRONG, ids=[f"{'.'.join(w[0])}-{i}" for i, w in enumerate(WRONG)])
def test_a_wrong_value_is_told_in_one_line(default, tmp_path, keys, value, told):
    config = changed(default, keys, value)
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(config))
    line = validation.complaint(config, [str(file)])
    assert told in line and "\n" not in line
    assert line.startswith(f"{file}: ")


def test_the_default_configuration_and_every_study_are_right(root, default):
    assert validation.complaint(default, ["config.yaml"]) is None
    for file in (root / "studies").glob("*.yaml"):
        assert validation.complaint(merged(default, yaml.safe_load(file.read_text())), [str(file)]) is None, file


def test_the_line_names_the_file_that_decides(default, tmp_path):
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("sampling: {guidance: -2}")
    below = tmp_path / "config.yaml"
    below.write_text(yaml.safe_dump(default))
    files = [str(overlay), str(below)]
    assert validation.complaint(changed(default, ["sampling", "guidance"], -2), files).startswith(str(overlay))
    assert validation.complaint(changed(default, ["sampling", "canvas"], 0), files).startswith("--config: ")


def test_every_key_of_the_configuration_has_a_comment_or_a_commented_section(root):
    """A reader of config.yaml finds each section explained."""
    lines = (root / "config.yaml").read_text().splitlines()
    for number, line in enumerate(lines):
        if line and line[0].isalpha():
            above = lines[number - 1].startswith("#") if number else False
            inside = any("#" in below for below in lines[number : number + 3])
            assert above or inside, line


def test_snakemake_stops_with_that_line_and_no_traceback(root, tmp_path):
    (tmp_path / "typo.yaml").write_text("study: typo\nsampling: {stepps: [1]}\n")
    command = [sys.executable, "-m", "snakemake", "-n", "--cores", "1", "--configfile", str(tmp_path / "typo.yaml")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "sampling.stepps is not a key; did you mean steps?" in done.stderr
    assert "Traceback" not in done.stderr
