"""The crate of a run: valid by its profiles, complete, and in agreement with the files on disk."""

import io
import json
from pathlib import Path

import pytest
import requests
import yaml
from rocrate_validator import models, services
from rocrate_validator.utils.http import HttpRequester
from study_fixtures import copy_study, run_smoke_study, snakemake
from urllib3 import HTTPResponse

from docs import crate, reference
from reversal.common import files
from reversal.common.errors import UserError

# Recommended addresses that do not exist before the crate and the repository are published.
ALLOWED_ISSUES = {
    "The Application SHOULD have a url",
    "The SoftwareApplication id SHOULD be an absolute URI",
    "The `publisher` property of a `Root Data Entity` SHOULD be an `Organization`",
    "The organization SHOULD have a URL.",
    # The crate's context has no term for an author's institution.
    "The author SHOULD have an organizational affiliation.",
    "The author SHOULD have a Contextual Entity which specifies the organizational `affiliation`.",
}


@pytest.fixture(scope="module")
def study(root, tmp_path_factory):
    """The finished smoke study in a folder of its own, and its configuration."""
    folder = copy_study(run_smoke_study(root, tmp_path_factory), tmp_path_factory.mktemp("packed") / "project")
    return folder, reference.load_configuration(folder / "config.yaml", folder / "studies/smoke.yaml")


@pytest.fixture(scope="module")
def packed(study):
    """The folder of its crate."""
    folder, config = study
    return crate.pack(folder, config, studies=["studies/smoke.yaml"])


@pytest.fixture(scope="module")
def entities(packed):
    """{identifier: entity} of the crate."""
    return {entity["@id"]: entity for entity in json.loads((packed / "ro-crate-metadata.json").read_text())["@graph"]}


def find_issues(folder, root, cache, severity="RECOMMENDED"):
    """The issues that the validator finds in a crate: [(severity, message)]. RO-Crate's vocabulary is a golden file."""
    settings = services.ValidationSettings(
        rocrate_uri=str(folder),
        profile_identifier="provenance-run-crate",
        requirement_severity=models.Severity[severity],
        offline=True,
        cache_path=cache,
    )
    context = json.loads((root / "tests/golden/ro_crate/context.json").read_text())
    answer = HTTPResponse(
        body=io.BytesIO(json.dumps(context).encode()),
        headers={"Content-Type": "application/ld+json"},
        status=200,
        request_method="GET",
        preload_content=False,
    )
    request = requests.Request("GET", context["@id"]).prepare()
    response = requests.adapters.HTTPAdapter().build_response(request, answer)
    assert response.json() == context
    HttpRequester().session.cache.save_response(response)
    return [(issue.severity.name, issue.message) for issue in services.validate(settings).get_issues()]


def test_the_crate_is_a_valid_provenance_run_crate(packed, root, tmp_path):
    issues = find_issues(packed, root, tmp_path / "valid")
    assert {message for _, message in issues} <= ALLOWED_ISSUES
    assert {severity for severity, _ in issues} <= {"RECOMMENDED"}
    # Although it is offline, the validator finds errors.
    broken = tmp_path / "broken"
    copy_study(packed, broken)
    metadata = json.loads((broken / "ro-crate-metadata.json").read_text())
    [run] = [entity for entity in metadata["@graph"] if entity["@id"] == "#run-smoke"]
    run["instrument"] = {"@id": "config.yaml"}
    (broken / "ro-crate-metadata.json").write_text(json.dumps(metadata))
    (broken / "results/smoke/paper/index.html").unlink()
    messages = [message for _, message in find_issues(broken, root, tmp_path / "cache", "REQUIRED")]
    assert any("MUST reference the root data entity's mainEntity as its instrument" in message for message in messages)
    assert any("does not include the Data Entity 'results/smoke/paper/index.html'" in message for message in messages)


def test_every_file_of_the_run_is_in_the_crate_or_listed_with_its_hash(study, packed, entities):
    folder, _ = study
    listed = dict(reversed(line.split("  ")) for line in (packed / crate.CHECKSUMS).read_text().splitlines())
    inside = {file.relative_to(packed).as_posix() for file in packed.rglob("*") if file.is_file()}
    assert inside - listed.keys() == {crate.CHECKSUMS, "ro-crate-metadata.json", "ro-crate-preview.html"}
    for name, digest in listed.items():
        assert files.sha256(folder / name) == digest
        assert name not in inside or files.sha256(packed / name) == digest
    for path in {path for job in crate.read_jobs(folder, "results/smoke", "generated") for path in job.outputs}:
        identifier = f"{path}/" if (folder / path).is_dir() else path
        assert ("#" + identifier in entities) != (identifier in entities), path
        assert (identifier in entities) == ((packed / path).exists())
    assert entities["#results/smoke/data/facts.jsonl"]["sha256"] == listed["results/smoke/data/facts.jsonl"]
    omitted = {Path(name).parts[2] for name in listed.keys() - inside}
    assert {"models", "data", "completions", "traces"} <= omitted and omitted.isdisjoint(crate.RESULTS)


def test_the_crate_has_authors_times_software_and_costs_and_lists_the_post_first(study, packed, entities):
    folder, _ = study
    citation = yaml.safe_load((folder / "CITATION.cff").read_text())
    crate_root, run = entities["./"], entities["#run-smoke"]
    assert citation["title"] in crate_root["name"]
    [author] = citation["authors"]
    name = f"{author['given-names']} {author['family-names']}"
    assert entities[crate_root["author"]["@id"]]["name"] == name
    assert crate_root["license"]["@id"].endswith(citation["license"])
    assert run["result"][0]["@id"] == "results/smoke/paper/index.html" and run["startTime"] < run["endTime"]
    assert {"config.yaml", "studies/smoke.yaml"} <= {entity["@id"] for entity in run["object"]}
    packages = {entities[package["@id"]]["name"] for package in entities["Snakefile"]["softwareRequirements"]}
    assert {"python", "torch", "transformers", "snakemake"} <= packages
    trained = entities["#job-finetune/mdm/seed_1"]
    assert trained["instrument"]["@id"] == "workflow/scripts/finetune.py"
    assert "#results/smoke/models/mdm/seed_1/" in {entity["@id"] for entity in trained["result"]}
    assert {entities[used["@id"]]["name"] for used in trained["resourceUsage"]} >= {"wall time", "peak memory"}


def test_the_unpacked_crate_is_a_project_that_runs(packed):
    done = snakemake(packed, "-n", "results/smoke/tables/step_scaling.csv")
    assert done.returncode == 0, done.stderr


def test_a_study_that_changed_since_its_run_or_never_ran_is_not_packed(study):
    folder, config = study
    with pytest.raises(UserError, match="results/other has no finished run"):
        crate.pack(folder, config | {"study": "other"})
    table = folder / "results/smoke/completions/ar/seed_1.jsonl"
    content = table.read_bytes()
    table.write_bytes(content + b"\n")
    with pytest.raises(UserError, match="seed_1.jsonl changed since it was made"):
        crate.pack(folder, config)
    table.write_bytes(content)
