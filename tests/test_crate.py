"""The crate of a run: valid by its profiles, whole, and true to what lies on disk."""

import io
import json
from pathlib import Path

import pytest
import requests
import yaml
from rocrate_validator import models, services
from rocrate_validator.utils.http import HttpRequester
from study_fixtures import duplicate, finished, snakemake
from urllib3 import HTTPResponse

from docs import crate, reference
from reversal.common import files
from reversal.common.errors import UserError

# Addresses that nobody has before the crate and the repository are published.
OPEN = {
    "The Application SHOULD have a url",
    "The SoftwareApplication id SHOULD be an absolute URI",
    "The `publisher` property of a `Root Data Entity` SHOULD be an `Organization`",
    "The organization SHOULD have a URL.",
}


@pytest.fixture(scope="module")
def study(root, tmp_path_factory):
    """The finished smoke study in a folder of its own, and its configuration."""
    folder = duplicate(finished(root, tmp_path_factory), tmp_path_factory.mktemp("packed") / "project")
    return folder, reference.configuration(folder / "config.yaml", folder / "studies/smoke.yaml")


@pytest.fixture(scope="module")
def packed(study):
    """The folder of its crate."""
    folder, config = study
    return crate.pack(folder, config, studies=["studies/smoke.yaml"])


@pytest.fixture(scope="module")
def entities(packed):
    """{identifier: entity} of the crate."""
    return {entity["@id"]: entity for entity in json.loads((packed / "ro-crate-metadata.json").read_text())["@graph"]}


def issues(folder, root, cache, least="RECOMMENDED"):
    """What the validator says of a crate: [(how grave, message)]. RO-Crate's vocabulary comes from a file here."""
    settings = services.ValidationSettings(
        rocrate_uri=str(folder),
        profile_identifier="provenance-run-crate",
        requirement_severity=models.Severity[least],
        offline=True,
        cache_path=cache,
    )
    known = json.loads((root / "tests/golden/ro_crate/context.json").read_text())
    answer = HTTPResponse(
        body=io.BytesIO(json.dumps(known).encode()),
        headers={"Content-Type": "application/ld+json"},
        status=200,
        request_method="GET",
        preload_content=False,
    )
    asked = requests.Request("GET", known["@id"]).prepare()
    response = requests.adapters.HTTPAdapter().build_response(asked, answer)
    assert response.json() == known
    HttpRequester().session.cache.save_response(response)
    return [(issue.severity.name, issue.message) for issue in services.validate(settings).get_issues()]


def test_the_crate_is_a_valid_provenance_run_crate(packed, root, tmp_path):
    found = issues(packed, root, tmp_path / "valid")
    assert {message for _, message in found} <= OPEN and {grave for grave, _ in found} <= {"RECOMMENDED"}
    # The validator does look, although it is offline.
    broken = tmp_path / "broken"
    duplicate(packed, broken)
    metadata = json.loads((broken / "ro-crate-metadata.json").read_text())
    [run] = [entity for entity in metadata["@graph"] if entity["@id"] == "#run-smoke"]
    run["instrument"] = {"@id": "config.yaml"}
    (broken / "ro-crate-metadata.json").write_text(json.dumps(metadata))
    (broken / "results/smoke/paper/index.html").unlink()
    told = [message for _, message in issues(broken, root, tmp_path / "cache", "REQUIRED")]
    assert any("MUST reference the root data entity's mainEntity as its instrument" in message for message in told)
    assert any("does not include the Data Entity 'results/smoke/paper/index.html'" in message for message in told)


def test_every_file_of_the_run_is_in_the_crate_or_named_with_its_hash(study, packed, entities):
    folder, _ = study
    listed = dict(reversed(line.split("  ")) for line in (packed / crate.CHECKSUMS).read_text().splitlines())
    within = {file.relative_to(packed).as_posix() for file in packed.rglob("*") if file.is_file()}
    assert within - listed.keys() == {crate.CHECKSUMS, "ro-crate-metadata.json", "ro-crate-preview.html"}
    for name, digest in listed.items():
        assert files.sha256(folder / name) == digest
        assert name not in within or files.sha256(packed / name) == digest
    left = {job.outputs for job in crate.jobs(folder, "results/smoke", "generated")}
    for path in {path for outputs in left for path in outputs}:
        place = f"{path}/" if (folder / path).is_dir() else path
        assert ("#" + place in entities) != (place in entities), path
        assert (place in entities) == ((packed / path).exists())
    assert entities["#results/smoke/data/facts.jsonl"]["sha256"] == listed["results/smoke/data/facts.jsonl"]
    stays = {Path(name).parts[2] for name in listed.keys() - within}
    assert {"models", "data", "completions", "traces"} <= stays and stays.isdisjoint(crate.SHOWN)


def test_the_crate_tells_who_what_and_when_and_the_post_first(study, packed, entities):
    folder, _ = study
    cited = yaml.safe_load((folder / "CITATION.cff").read_text())
    whole, run = entities["./"], entities["#run-smoke"]
    assert cited["title"] in whole["name"] and entities[whole["author"]["@id"]]["name"] == cited["authors"][0]["name"]
    assert whole["license"]["@id"].endswith(cited["license"])
    assert run["result"][0]["@id"] == "results/smoke/paper/index.html" and run["startTime"] < run["endTime"]
    assert {"config.yaml", "studies/smoke.yaml"} <= {given["@id"] for given in run["object"]}
    versions = {entities[needed["@id"]]["name"] for needed in entities["Snakefile"]["softwareRequirements"]}
    assert {"python", "torch", "transformers", "snakemake"} <= versions
    trained = entities["#job-finetune/mdm/seed_1"]
    assert trained["instrument"]["@id"] == "workflow/scripts/finetune.py"
    assert "#results/smoke/models/mdm/seed_1/" in {made["@id"] for made in trained["result"]}
    assert {entities[used["@id"]]["name"] for used in trained["resourceUsage"]} >= {"wall time", "peak memory"}


def test_unpacked_the_crate_is_a_project_that_runs(packed):
    done = snakemake(packed, "-n", "results/smoke/tables/step_scaling.csv")
    assert done.returncode == 0, done.stderr


def test_what_was_changed_since_or_never_run_is_not_packed(study, tmp_path):
    folder, config = study
    with pytest.raises(UserError, match="results/other has no finished run"):
        crate.pack(folder, config | {"study": "other"})
    table = folder / "results/smoke/completions/ar/seed_1.jsonl"
    content = table.read_bytes()
    table.write_bytes(content + b"\n")
    with pytest.raises(UserError, match="seed_1.jsonl changed since it was made"):
        crate.pack(folder, config)
    table.write_bytes(content)
