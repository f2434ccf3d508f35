"""The structure that CONTRIBUTING.md describes, checked against the code."""

import ast
import re
from pathlib import Path

import pytest
import yaml

from reversal.common import batches, closure
from reversal.data import facts
from reversal.models import vocabulary as models_vocabulary
from reversal.recall import sampling
from reversal.storage import vocabulary as storage_vocabulary
from reversal.tracing import llama, vocabulary

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "workflow/reversal"
MODULES = sorted(file.relative_to(LIBRARY).as_posix() for file in LIBRARY.rglob("*.py") if file.name != "__init__.py")
SCRIPTS = sorted((ROOT / "workflow/scripts").glob("*.py"))
# A package may import itself and those before it.
LAYERS = ["common", "data", "models", "study", "training", "recall", "tracing", "storage", "figures", "paper"]


def imported(file):
    """The library's modules that a file imports anywhere, by Python's own parser."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("reversal")):
            above = file.parents[node.level - 1] if node.level else LIBRARY.parent
            start = above.joinpath(*filter(None, (node.module or "").split(".")))
            for name in node.names:
                paths = [path.with_suffix(".py") for path in (start / name.name, start)]
                found |= {next((path.relative_to(LIBRARY).as_posix() for path in paths if path.is_file()), None)}
    return found - {None}


@pytest.mark.parametrize("file", [*(LIBRARY / name for name in MODULES), *SCRIPTS], ids=lambda file: file.stem)
def test_code_inputs_miss_no_import(file):
    assert {path.relative_to(LIBRARY).as_posix() for path in closure._imports(file)} == imported(file)


def test_a_closure_has_indirect_imports_and_leaves_out_what_changes_no_result():
    found = {file.relative_to(LIBRARY).as_posix() for file in closure.code_of(ROOT / "workflow/scripts/finetune.py")}
    assert {"training/loop.py", "training/objective.py", "models/network.py", "data/facts.py"} <= found
    assert found.isdisjoint(closure.NO_RESULT_CHANGES_WITH)
    assert all((LIBRARY / name).is_file() for name in closure.NO_RESULT_CHANGES_WITH)


def test_imports_run_one_way():
    for name in MODULES:
        own = LAYERS.index(name.split("/")[0])
        for other in imported(LIBRARY / name):
            assert LAYERS.index(other.split("/")[0]) <= own, f"{name} imports {other}"


def rules():
    """{rule: its text} of all rules."""
    found = {}
    for file in (ROOT / "workflow/rules").glob("*.smk"):
        for text in re.split(r"^(?= *rule ?\w*:|use rule)", file.read_text(), flags=re.M)[1:]:
            copied, name = re.match(r"use rule \w+ as (\w+)| *rule ?(\w*):", text).groups()
            found[copied or name or file.stem] = text
    return found


def test_every_rule_with_a_script_depends_on_that_scripts_code():
    scripts = set()
    for name, text in rules().items():
        if script := re.search(r'"\.\./scripts/([\w{}\[\]\'"]+)\.py"', text):
            declared = re.search(r'code=(?:ancient\()?library\(\s*f?"([^"]+|prepare_\{DATA\[\'source\'\]\})"', text)
            assert declared and declared[1] == script[1], name
            scripts.add(script[1])
    assert {file.stem for file in SCRIPTS if not file.stem.startswith("prepare_")} <= scripts


def test_logs_and_benchmark_files_are_named_after_their_rules():
    """The table of costs finds the rule of a job by these names; downloads are shared by studies and not counted."""
    unmeasured = {"download", "download_pairs", "costs", "evaluate_claims", "post", "page", "sortable"}
    for name, text in rules().items():
        if '"../scripts/' in text:
            ends = {"log": "log", "benchmark": "tsv"}
            places = [rf'{kind}:\s+f?"<results>/{kind}s?/{name}(/[^"]*)?\.{end}"' for kind, end in ends.items()]
            assert unmeasured & {name} or all(re.search(place, text) for place in places), name


@pytest.mark.parametrize("profile", ["default", "gpu", "slurm", "slurm-many"])
def test_profiles_name_rules_that_exist(profile):
    settings = yaml.safe_load((ROOT / f"profiles/{profile}/config.yaml").read_text())
    named = {*settings.get("set-resources", {}), *settings.get("set-threads", {})}
    named |= {group.partition("=")[0] for group in settings.get("groups", [])}
    assert named <= {*rules()}


def test_scripts_are_short_and_alone_know_snakemake():
    for file in SCRIPTS:
        assert len(file.read_text().splitlines()) <= 40, file.name
    for name in MODULES:
        assert not re.search(r"^(import|from) snakemake", (LIBRARY / name).read_text(), re.M), name


def test_the_map_of_the_library_is_complete():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for package in LAYERS:
        [row] = re.findall(rf"^\| `{package}/` \|(.*)\|$", text, re.M)
        named = set(re.findall(r"`(\w+)`", row))
        assert named == {name.split("/")[1][:-3] for name in MODULES if name.startswith(f"{package}/")}, package


def enums(node, path=()):
    """Every list of allowed words in the schema, with its path."""
    if isinstance(node, dict):
        if "enum" in node:
            yield path, node["enum"]
        for key, value in node.items():
            yield from enums(value, (*path, key))
    elif isinstance(node, list):
        for value in node:
            yield from enums(value, path)


def test_the_schema_allows_the_words_that_the_library_knows():
    schema = yaml.safe_load((ROOT / "workflow/schemas/config.schema.yaml").read_text())
    known = {
        frozenset(words)
        for words in (
            facts.GROUPS,
            facts.GROUPS | facts.CONTROL_GROUPS,
            facts.SPLITS,
            models_vocabulary.FAMILIES,
            models_vocabulary.NOISES,
            models_vocabulary.PROTECTED,
            models_vocabulary.TIMES,
            models_vocabulary.POSITIONS,
            facts.TRAIN_ON,
            ("all", "control"),
            batches.PRECISIONS,
            llama.DTYPES,
            vocabulary.KINDS,
            sampling.ORDERS,
            sampling.SCHEDULES,
            sampling.REMASKINGS,
            storage_vocabulary.EDIT_KINDS,
            storage_vocabulary.WEIGHTS,
            ("all", "peak"),
        )
    }
    allowed = {path: frozenset(words) for path, words in enums(schema)}
    bases, sources = (allowed.pop(next(path for path in allowed if path[-1] == key)) for key in ("base", "source"))
    assert {f"base_{name}" for name in bases} <= rules().keys()
    assert {f"prepare_{name}" for name in sources} <= {file.stem for file in SCRIPTS}
    assert set(allowed.values()) <= known, set(allowed.values()) - known
    corruptions = schema["properties"]["tracing"]["properties"]["corruptions"]
    assert set(corruptions["properties"]) == set(vocabulary.CORRUPTIONS)
