"""Wrong configurations: each gives one line that names file, key, value and what is allowed."""

import copy
import subprocess
import sys
from dataclasses import asdict

import pytest
import yaml
from bad_inputs import CONFIGURATIONS, change_key
from snakemake.utils import update_config

from reversal.study import configuration
from reversal.study.resolve import Objective, merge_defaults


@pytest.fixture(scope="module")
def default(root):
    return yaml.safe_load((root / "config.yaml").read_text())


def merged(config, overlay):
    """The configuration with an overlay, as Snakemake merges them."""
    config = copy.deepcopy(config)
    update_config(config, overlay)
    return config


@pytest.mark.parametrize(
    "keys, value, expected", CONFIGURATIONS, ids=[f"{'.'.join(w[0])}-{i}" for i, w in enumerate(CONFIGURATIONS)]
)
def test_a_wrong_value_gives_one_line(default, tmp_path, keys, value, expected):
    config = change_key(default, keys, value)
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(config))
    line = configuration.find_error(config, [str(file)])
    assert expected in line and "\n" not in line
    assert line.startswith(f"{file}: ")


def test_the_default_configuration_and_every_study_are_valid(root, default):
    assert configuration.find_error(default, ["config.yaml"]) is None
    for file in (root / "studies").glob("*.yaml"):
        assert configuration.find_error(merged(default, yaml.safe_load(file.read_text())), [str(file)]) is None, file


def test_the_line_names_the_file_that_sets_the_value(default, tmp_path):
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("sampling: {guidance: -2}")
    below = tmp_path / "config.yaml"
    below.write_text(yaml.safe_dump(default))
    files = [str(overlay), str(below)]
    assert configuration.find_error(change_key(default, ["sampling", "guidance"], -2), files).startswith(str(overlay))
    assert configuration.find_error(change_key(default, ["sampling", "canvas"], 0), files).startswith("--config: ")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_blamed_on_its_own_source(default, tmp_path, value):
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(default))
    config = change_key(default, ["sampling", "guidance"], value)
    assert configuration.find_error(config, [str(file)]).startswith("--config: sampling.guidance is no number")
    file.write_text(yaml.safe_dump(config))
    assert configuration.find_error(config, [str(file)]).startswith(f"{file}: sampling.guidance is no number")


@pytest.mark.parametrize(
    "given, meant",
    [
        ({"seeds": ["1", "2"]}, {"seeds": [1, 2]}),
        ({"sampling": {"guidance": "0.4", "block": "null"}}, {"sampling": {"guidance": 0.4, "block": None}}),
        ({"keyvalue": {"max_facts": "7"}}, {"keyvalue": {"max_facts": 7}}),
        ({"data": {"rows": {"train": "my/7.jsonl"}}}, {"data": {"rows": {"train": "my/7.jsonl"}}}),
        ({"models": {"ar": {"hub": {"revision": "0" * 40}}}}, {"models": {"ar": {"hub": {"revision": "0" * 40}}}}),
    ],
)
def test_nested_values_of_the_command_line_are_read_as_in_a_file(default, given, meant):
    """Snakemake passes them as text."""
    assert merge_defaults(merged(default, given), default) == merged(default, meant)


@pytest.mark.parametrize("data", [{"source": "berglund"}, {"generated": {"control_people": 0}}])
def test_edits_of_control_people_need_control_people(default, data):
    config = merged(default, {"finetuned_edits": {"groups": ["both", "p2d_control"]}})
    assert configuration.find_error(config, ["config.yaml"]) is None
    line = configuration.find_error(merged(config, {"data": data}), [])
    assert (
        "finetuned_edits.groups[1] is 'p2d_control'; allowed: only with data.source generated and control_people"
        in line
    )


def walk_schema(schema, config, path=""):
    """(path, schema, whether it is required, value in `config` or "no value") of each key below `schema`."""
    for key, node in schema.get("properties", {}).items():
        value = config.get(key, "no value") if isinstance(config, dict) else "no value"
        yield f"{path}{key}", node, key in schema.get("required", ()), value
        yield from walk_schema(node, value, f"{path}{key}.")
    if isinstance(inner := schema.get("additionalProperties"), dict):
        yield from walk_schema(inner, {}, f"{path}*.")


def test_the_schema_says_type_meaning_and_default_of_every_key_in_its_place(root, default):
    """Snakemake's catalogue makes a table of the configuration from it, and follows no references."""
    text = (root / "workflow/schemas/config.schema.yaml").read_text()
    assert "$ref" not in text
    keys = list(walk_schema(yaml.safe_load(text), default))
    assert len(keys) > 150
    for path, node, required, value in keys:
        assert node["type"] and node["description"] and "|" not in node["description"], path
        if value != "no value" and not ("properties" in node and value) and path != "models":
            assert node["default"] == value, path
        elif ".*." not in f".{path}" and "properties" not in node and path != "ablations.factors.temperature":
            assert required or "default" in node, path
    defaults = {path.removeprefix("models.*.objective."): node.get("default") for path, node, _, _ in keys}
    for key, value in asdict(Objective()).items():
        assert defaults[key] == value


def test_every_key_of_the_configuration_has_a_comment_or_a_commented_section(root):
    """A reader of config.yaml finds each section explained."""
    lines = (root / "config.yaml").read_text().splitlines()
    for number, line in enumerate(lines):
        if line and line[0].isalpha():
            above = lines[number - 1].startswith("#") if number else False
            inside = any("#" in below for below in lines[number : number + 3])
            assert above or inside, line


def test_snakemake_stops_with_one_line_and_no_traceback(root, tmp_path):
    (tmp_path / "typo.yaml").write_text("study: typo\nsampling: {stepps: [1]}\n")
    command = [sys.executable, "-m", "snakemake", "-n", "--cores", "1", "--configfile", str(tmp_path / "typo.yaml")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "sampling.stepps is not a key; did you mean steps?" in done.stderr
    assert "Traceback" not in done.stderr
