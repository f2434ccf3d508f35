"""Wrong configurations: each gives one line that names file, key, value and what is allowed."""

import copy
import functools
from dataclasses import asdict, fields

import pytest
import yaml
from input_fixtures import change_key
from jsonschema import Draft202012Validator
from snakemake.utils import update_config

from reversal.recall.sampling import Sampling
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


def find_error(config, folder):
    """The error of a configuration written to a file, without the file's name."""
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(config))
    line = configuration.find_error(config, [str(file)])
    assert line.startswith(f"{file}: ") and "\n" not in line, line
    return line.removeprefix(f"{file}: ")


PINNED = f"repo: owner/name, revision: {'a' * 40}, files: {{m.safetensors: {'a' * 64}}}"
# (an overlay of the default study, the key that the error must name, a part of what it must say)
WRONG = [
    ("study: ../elsewhere", "study", "a folder name"),
    ("stduy: x", "stduy", "did you mean study?"),
    ("training: {lr: 0.1}", "training.lr", "known here: epochs"),
    ("data: {generated: {people_per_group: 30.5}}", "data.generated.people_per_group", "a whole number"),
    ("data: {generated: {words: no/words}}", "data.generated.words", "no/words/patterns.txt: No such file"),
    ("data: {generated: {templates: data}}", "data.generated.templates", "data/p2d.txt: no such file"),
    ("data: {source: rows}", "data.rows.tests", "the file of your test rows"),
    ("sampling: {canvas: 1000000}", "sampling.canvas", "up to 256, the positions of mdm"),
    ("sampling: {steps: [1, 2, 0]}", "sampling.steps[2]", "from 1 up"),
    ("sampling: {guidance: .nan}", "sampling.guidance", "a finite number"),
    ("tracing: {max_facts: 0}", "tracing.max_facts", "keyvalue uses"),
    ("tracing: {sampling_steps: 5}", "tracing.sampling_steps", "one of sampling.steps"),
    ("tracing: {splits: [p2d]}", "tracing.splits[0]", "p2d_same"),
    ("rank_one_edits: {max_facts: 1}", "rank_one_edits.max_facts", "or 0 to"),
    ("keyvalue: {layers: last}", "keyvalue.layers", "all, peak, or a list"),
    ("keyvalue: {layers: [0, 40]}", "keyvalue.layers[1]", "the last layer of mdm"),
    ("keyvalue: {prefixes: {lengths: [1, 50]}}", "keyvalue.prefixes.lengths[1]", "the canvas of mdm"),
    ("models: {small: {family: diffusion, base: scratch, network: {layers: 2}}}", "keyvalue.layers[1]", "of small"),
    ("models: {Big Model: {family: diffusion, base: scratch}}", "Big Model", "lower-case"),
    ("models: {x: {base: scratch}}", "models.x", "has no family"),
    ("models: {x: {family: diffusion}}", "models.x", "has no base"),
    ("models: {x: {family: diffusion, base: folder}}", "models.x", "has no folder"),
    ("models: {x: {family: autoregressive, base: hub}}", "models.x", "has no hub"),
    ("models: {x: {family: diffusion, base: checkpoint}}", "models.x", "has no checkpoint"),
    ("models: {x: {family: autoregressive, base: lit_gpt}}", "models.x", "has no lit_gpt"),
    ("models: {mdm: {folder: nowhere}}", "models.mdm.folder", "a folder that exists"),
    ("models: {x: {family: diffusion, base: hub, hub: {PINNED}}}", "models.x.family", "autoregressive"),
    ("models: {ar: {base: hub, hub: {PINNED, revision: main}}}", "models.ar.hub.revision", "a commit"),
    ("models: {ar: {base: hub, hub: {PINNED, repo: gpt2}}}", "models.ar.hub.repo", "owner/name"),
    ("models: {ar: {base: hub, hub: {PINNED, files: {m: abc}}}}", "models.ar.hub.files", "a SHA-256"),
    ("models: {ar: {base: hub, hub: {PINNED, files: {../m: x}}}}", "models.ar.hub.files", "without a folder"),
    ("models: {ar: {base: checkpoint, checkpoint: {folder: x}}}", "models.ar.family", "diffusion, for"),
    ("models: {mdm: {base: checkpoint, checkpoint: {PINNED, files: all}}}", "mdm.checkpoint.files", "or unpinned"),
    ("models: {mdm: {objective: {noise: uniform}}}", "models.mdm.objective.noise", "mask for a base from folder"),
    ("models: {x: {family: diffusion, base: pretrain, objective: {noise: gaussian}}}", "x.objective.noise", "embedded"),
    ("models: {mdm: {objective: {rate: 0}}}", "models.mdm.objective.rate", "uniform, or a number above 0"),
    ("models: {mdm: {objective: {protect: none}}}", "objective.people", "where something is protected"),
    ("models: {mdm: {objective: {masked_context: 0.5}}}", "models.mdm.objective.masked_context", "0 for a diffusion"),
    ("models: {mdm: {objective: {block: 4}}}", "sampling.guidance", "mdm is trained with blocks"),
    ("models: {ar: {objective: {rate: 0.5}}}", "models.ar.objective.rate", "diffusion models only"),
    (
        "models: {ar: {objective: {whole_entities: true}}}",
        "models.ar.objective.whole_entities",
        "diffusion models only",
    ),
    ("models: {ar: {objective: {block: 4}}}", "models.ar.objective.block", "null"),
    ("models: {ar: {objective: {masked_context: 0.5, protect: subject}}}", "models.ar.objective.protect", "none"),
    ("models: {ar: {train_on: [backwards]}}", "models.ar.train_on[0]", "facts, reversed, mentions"),
    ("models: {ar: {train_on: [facts, control_mentions]}}", "models.ar.train_on", "objective.people control"),
    ("models: {ar: {network: {layers: 2}}}", "models.ar.network", "base pretrain or scratch"),
    (
        "models: {x: {family: autoregressive, base: scratch, network: {positions: none}}}",
        "x.network.positions",
        "rotary",
    ),
    ("models: {mdm: {canvas: 60}}", "models.mdm.canvas", "training.width (40)"),
    (
        "{finetuned_edits: {groups: [both, p2d_control]}, data: {source: berglund}}",
        "finetuned_edits.groups[1]",
        "only with data.source generated",
    ),
    ("network: {width: 130}", "network.width", "a multiple of twice network.heads"),
    ("seeds: [1, 1]", "seeds", "a list of different whole numbers"),
    ("training: none", "training", "a recipe, unless data.source is pairs"),
    ("data: {source: pairs}", "training", "none, when data.source is pairs"),
    ("training: {adapter: {rank: 8}}", "training.adapter", "has no alpha"),
    ("training: {betas: [0.9, 1.0]}", "training.betas[1]", "below 1"),
    ("training: {width: [40, 22]}", "training.width", "the smaller number before the larger"),
    ("training: {width: 20}", "sampling.canvas", "up to training.width (20)"),
    ("pretraining: {recipe: {adapter: {rank: 8, alpha: 16}}}", "pretraining.recipe.adapter", "a base is trained whole"),
]


@pytest.mark.parametrize("overlay, key, expected", WRONG, ids=[case[0] for case in WRONG])
def test_values_that_do_not_fit_give_one_line_that_names_the_key(default, tmp_path, overlay, key, expected):
    line = find_error(merged(default, yaml.safe_load(overlay.replace("PINNED", PINNED))), tmp_path)
    assert key in line.split(";")[0] and expected in line, line


def values_outside(schema):
    """A value beyond each bound of a key's schema."""
    bounds = {"minimum": -1, "exclusiveMinimum": 0, "maximum": 1, "exclusiveMaximum": 0}
    yield from (schema[bound] + step for bound, step in bounds.items() if bound in schema)
    yield from (["no such value"] if "enum" in schema or "pattern" in schema else [])
    yield from ([[]] if schema.get("minItems") else [])
    yield {"no such": "key"}


def test_no_key_takes_a_value_outside_its_bounds(root, default):
    schema = yaml.safe_load((root / "workflow/schemas/config.schema.yaml").read_text())
    validator = Draft202012Validator(schema)
    for path, node, _, _ in walk_schema(schema, default):
        keys = path.replace("*", "mdm").split(".")
        parent = functools.reduce(lambda part, key: (part or {}).get(key), keys[:-1], default)
        for value in values_outside(node) if parent else ():
            errors = validator.iter_errors(change_key(default, keys, value))
            assert keys in [list(error.absolute_path) for error in errors], (path, value)


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
    assert configuration.find_error(config, [str(file)]).startswith(f"--config: sampling.guidance is {value}")
    file.write_text(yaml.safe_dump(config))
    assert configuration.find_error(config, [str(file)]).startswith(f"{file}: sampling.guidance is {value}")


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
        elif ".*." not in f".{path}" and "properties" not in node:
            assert required or "default" in node, path
    defaults = {path.removeprefix("models.*.objective."): node.get("default") for path, node, _, _ in keys}
    for key, value in asdict(Objective()).items():
        assert defaults[key] == value
    keys_of_sampling = {path.removeprefix("sampling.") for path, *_ in keys if path.startswith("sampling.")}
    assert keys_of_sampling == {"steps", *(field.name for field in fields(Sampling))} - {"precision"}


def test_every_key_of_the_configuration_has_a_comment_or_a_commented_section(root):
    """A reader of config.yaml finds each section explained."""
    lines = (root / "config.yaml").read_text().splitlines()
    for number, line in enumerate(lines):
        if line and line[0].isalpha():
            above = lines[number - 1].startswith("#") if number else False
            inside = any("#" in below for below in lines[number : number + 3])
            assert above or inside, line
