"""Pack a finished study with the project: `make crate` writes results/<study>/crate, a Workflow Run RO-Crate.

    python -m docs.crate
    python -m docs.crate studies/published.yaml --agent "Jane Doe"

Unpacked, it is the project with the study's tables, figures and post in place. Outputs that are large, or made from
data that may not be redistributed, are not packed: the crate lists them with their SHA-256, and checksums.sha256 has
those of all files. Title and authors come from CITATION.cff, the jobs' inputs and outputs from Snakemake's records.
"""

import argparse
import ast
import base64
import contextlib
import hashlib
import importlib.metadata
import io
import json
import mimetypes
import platform
import re
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import yaml
from rocrate.model import ContextEntity
from rocrate.rocrate import ROCrate

from reversal.common import files
from reversal.common.errors import UserError
from reversal.paper import provenance

from .reference import load_configuration

ROOT = Path(__file__).resolve().parent.parent
# The files of the project, and the results, that are packed.
PROJECT = ("Snakefile", "config.yaml", "workflow", "studies", "profiles", "envs", "data", "paper", "requirements.txt")
PROJECT += ("pyproject.toml", "Makefile", "Dockerfile", "config", "docs", "README.md", "LICENSE", "CITATION.cff")
RESULTS = ("tables", "figures", "paper")
CHECKSUMS = "checksums.sha256"
# Terms beyond RO-Crate's own, with their addresses, so that a reader needs no other vocabulary.
TERMS = {term: f"https://w3id.org/ro/terms/workflow-run#{term}" for term in ("sha256", "resourceUsage")}
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/ro/wfrun/provenance/0.5": "Provenance Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
WORKFLOW_PROFILE = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
# {column of Snakemake's benchmarks: (name, UN/CEFACT code of its unit)}
MEASURED = {"s": ("wall time", "SEC"), "cpu_time": ("CPU time", "SEC"), "max_rss": ("peak memory", "4L")}
BENCHMARKS = "https://snakemake.readthedocs.io/en/stable/snakefiles/rules.html#benchmark-rules"
FORMATS = mimetypes.MimeTypes()  # Python's own list, so that every machine gives the same formats
for suffix, media_type in {"jsonl": "application/jsonl", "md": "text/markdown", "yaml": "application/yaml"}.items():
    FORMATS.add_type(media_type, f".{suffix}")
FORMATS.add_type("application/octet-stream", ".safetensors")
DONE = "http://schema.org/CompletedActionStatus"


class Job(NamedTuple):
    """One job of the run, as Snakemake recorded it; paths relative to the project."""

    name: str  # of its log: rule and wildcards
    rule: str
    script: str
    inputs: tuple
    outputs: tuple
    began: float  # seconds since 1970
    ended: float


def read_jobs(root, results, source):
    """The jobs whose outputs are in the folder `results`, by the time they began; `source` is `data.source`."""
    jobs = {}
    records = root / ".snakemake/metadata"
    for file in sorted(path for path in records.rglob("*") if path.is_file()):
        # The name of a record is the path of its output in base 64; a long one is split over folders.
        parts = (part.removeprefix("@") for part in file.relative_to(records).parts)
        output = base64.urlsafe_b64decode("".join(parts)).decode()
        record = json.loads(file.read_bytes())
        code = (record["code"] or "").replace("{DATA['source']}", source)  # as in workflow/rules/data.smk
        script = re.search(r'"\.\./(scripts/\w+\.py)"', code)
        if script and Path(output).is_relative_to(results) and (root / output).exists():
            jobs.setdefault((record["rule"], record["log"][0]), []).append((output, record, f"workflow/{script[1]}"))
    return sorted(
        (_make_job(*key, outputs, results) for key, outputs in jobs.items()), key=lambda job: (job.began, job.name)
    )


def _make_job(rule, log, outputs, results):
    outputs, records, scripts = zip(*outputs, strict=True)
    return Job(
        name=Path(log).relative_to(f"{results}/logs").with_suffix("").as_posix(),
        rule=rule,
        script=scripts[0],
        # The crate describes the code by the script and the folder workflow.
        inputs=tuple(sorted(path for path in records[0]["input"] if not path.startswith("workflow/"))),
        outputs=outputs,
        began=min(record["starttime"] for record in records),
        ended=max(record["endtime"] for record in records),
    )


def hash_files(root, paths):
    """{file: SHA-256} of the files, and of the files in the folders, `paths` below `root`."""
    selected = {}
    for path in (root / path for path in paths):
        for file in [path] if path.is_file() else path.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts and file.name != files.TIMESTAMP:
                selected[(file.relative_to(root) if file.is_relative_to(root) else file).as_posix()] = file
    return {name: files.sha256(file) for name, file in sorted(selected.items())}


def pack(root, config, *, studies=(), agent=None):
    """Write the crate of a study in the project `root`, with its configuration and the overlays `studies` in it."""
    results = f"results/{config['study']}"
    jobs = read_jobs(root, results, config["data"]["source"])
    if not jobs:
        raise UserError(f"{results} has no finished run; run the study first (`make` runs the default study)")
    if outside := [study for study in studies if Path(study).parts[0] not in PROJECT]:
        raise UserError(f"{outside[0]} would not be in the crate; put it in studies/")
    outputs = [output for job in jobs for output in job.outputs]
    with contextlib.chdir(root):
        files.verify_hashes(outputs)
    hashes = hash_files(root, [*PROJECT, *outputs, *(path for job in jobs for path in job.inputs)])
    folder = root / results / "crate"
    shutil.rmtree(folder, ignore_errors=True)
    crate = Crate(root, results, hashes)
    crate.describe_study(config, jobs, agent=agent)
    crate.describe_workflow(studies)
    crate.describe_run(jobs, studies)
    crate.write(folder)
    return folder


class Crate:
    """A crate that is being filled."""

    def __init__(self, root, results, hashes):
        self.root, self.results, self.hashes = root, results, hashes
        self.crate = ROCrate(version="1.1", gen_preview=True)
        self.crate.metadata.extra_terms.update(TERMS)
        self.citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))

    def add(self, identifier, kind, **properties):
        """Add an entity that is no file; an entity that is there already stays as it is."""
        entity_properties = {"@type": kind} | {key: _unwrap(value) for key, value in properties.items() if value != []}
        return self.crate.get(identifier) or self.crate.add(
            ContextEntity(self.crate, identifier, properties=entity_properties)
        )

    def is_packed(self, path):
        """Whether a file or folder is in the crate, and not only listed."""
        results = [f"{self.results}/{name}" for name in RESULTS]
        return any(Path(path).is_relative_to(folder) for folder in (*PROJECT, *results))

    def add_path(self, path, kinds="File", **properties):
        """Add a file or folder of the project with its SHA-256; that of a folder is of the list of its files."""
        is_folder = (self.root / path).is_dir()
        identifier = f"{'' if self.is_packed(path) else '#'}{path}{'/' if is_folder else ''}"
        if known := self.crate.get(identifier):
            return known
        hashes = {name: digest for name, digest in self.hashes.items() if Path(name).is_relative_to(path)}
        digest = hashlib.sha256(format_checksums(hashes).encode()).hexdigest() if is_folder else hashes[str(path)]
        properties = {"@type": "Dataset" if is_folder else kinds, "name": str(path), **properties, "sha256": digest}
        properties["contentSize"] = str(sum((self.root / name).stat().st_size for name in hashes))
        if not is_folder:
            properties["encodingFormat"] = FORMATS.guess_type(path)[0] or "text/plain"
        if not self.is_packed(path):
            return self.add(identifier, properties.pop("@type"), **properties)
        add = self.crate.add_dataset if is_folder else self.crate.add_file
        return add(None if is_folder else self.root / path, identifier, properties=properties)

    def describe_study(self, config, jobs, *, agent):
        """Add title, authors, date, licence and profiles."""
        licence = self.citation["license"]
        root = self.crate.root_dataset
        root["name"] = f"{self.citation['title']}: the study {config['study']}"
        root["description"] = "A run of the workflow: the project, its inputs, and what it made."
        root["datePublished"] = _format_time(jobs[-1].ended)[:10]
        root["license"] = self.add(
            f"https://spdx.org/licenses/{licence}", "CreativeWork", name=licence, description=f"{licence} licence"
        )
        root["conformsTo"] = [
            self.add(address, "CreativeWork", name=name, version=address.rsplit("/")[-1])
            for address, name in PROFILES.items()
        ]
        authors = [self.add_author(author) for author in self.citation["authors"]]
        root["author"] = _unwrap(authors)
        self.agent = self.add(_anchor(agent), "Person", name=agent) if agent else authors[0]

    def add_author(self, author):
        """Add an author of CITATION.cff."""
        name = f"{author['given-names']} {author['family-names']}"
        properties = {"name": name} | ({"url": author["website"]} if "website" in author else {})
        return self.add(author.get("orcid", _anchor(name)), "Person", **properties)

    def describe_workflow(self, studies):
        """Add the Snakefile, the other files of the project, the required software and the configuration."""
        crate = self.crate
        self.snakefile = crate.add_workflow(
            self.root / "Snakefile",
            "Snakefile",
            main=True,
            lang="snakemake",
            lang_version=importlib.metadata.version("snakemake"),
            properties={
                "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
                "name": self.citation["title"],
                "version": provenance.commit(self.root),
                "sha256": self.hashes["Snakefile"],
                "encodingFormat": "text/plain",
            },
        )
        for path in PROJECT[1:]:
            self.add_path(path)
        crate.get("README.md")["about"] = crate.root_dataset
        self.snakefile["conformsTo"] = self.add(
            WORKFLOW_PROFILE, "CreativeWork", name="ComputationalWorkflow", version="1.0"
        )
        if "repository-code" in self.citation:
            self.snakefile["url"] = self.citation["repository-code"]
        pinned = re.findall(r"^([\w.-]+)==", (self.root / "requirements.txt").read_text(encoding="utf-8"), re.M)
        self.snakefile["softwareRequirements"] = [self.add_software(name) for name in ("python", *pinned)]
        self.snakefile["input"] = self.add_parameter("configuration", "File", ["config.yaml", *studies])

    def add_software(self, name):
        """Add a package with its installed version."""
        if name == "python":
            version, address = platform.python_version(), "https://www.python.org/"
        else:
            version = importlib.metadata.version(name)
            address = f"https://pypi.org/project/{name}/{version}/"
        return self.add(address, "SoftwareApplication", name=name, softwareVersion=version, url=address)

    def add_parameter(self, name, kind, paths):
        """Add an input or output of the workflow by its name, and the files that it was in this run."""
        examples = [self.add_path(path) for path in paths]
        parameter = self.add(
            f"#parameter-{name}", "FormalParameter", name=name, additionalType=kind, workExample=examples
        )
        for example in examples:
            example["exampleOfWork"] = parameter
        return parameter

    def describe_run(self, jobs, studies):
        """Add the jobs with their costs, each with its step of the workflow, and the run as a whole."""
        post = [path for job in jobs for path in job.outputs if path == f"{self.results}/paper/index.html"]
        self.snakefile["output"] = [
            *([self.add_parameter("post", "File", post)] if post else []),
            *(self.add_parameter(name, "Dataset", [f"{self.results}/{name}"]) for name in ("tables", "figures")),
        ]
        inputs = sorted({path for job in jobs for path in job.inputs if not path.startswith("results/")})
        run = self.add_action(
            f"#run-{Path(self.results).name}",
            f"The study {Path(self.results).name}",
            self.snakefile,
            ["config.yaml", *studies, *inputs],
            [*post, *sorted({path for job in jobs for path in job.outputs} - set(post))],
            (min(job.began for job in jobs), max(job.ended for job in jobs)),
        )
        steps = [self.add_job(job, position) for position, job in enumerate(jobs, start=1)]
        self.snakefile["hasPart"] = _unwrap([self.add_path(path) for path in dict.fromkeys(job.script for job in jobs)])
        self.snakefile["step"] = _unwrap(
            [self.crate.get(f"#step-{rule}") for rule in dict.fromkeys(job.rule for job in jobs)]
        )
        engine = self.add_software("snakemake")
        self.add(
            f"#engine-{Path(self.results).name}",
            "OrganizeAction",
            name=f"Snakemake {engine['softwareVersion']}",
            instrument=engine,
            object=steps,
            result=run,
            agent=self.agent,
        )

    def add_job(self, job, position):
        """Add a job: its action, and the `ControlAction` that links it to a step of the workflow."""
        description = ast.get_docstring(ast.parse((self.root / job.script).read_text(encoding="utf-8")))
        script = self.add_path(job.script, ["File", "SoftwareSourceCode"], version=self.snakefile["version"])
        step = self.add(f"#step-{job.rule}", "HowToStep", name=job.rule, position=str(position), workExample=script)
        times = (job.began, job.ended)
        action = self.add_action(f"#job-{job.name}", description, script, job.inputs, job.outputs, times)
        action["name"] = job.name
        if usage := self.add_usage(job):
            # RO-Crate wants one value by itself, not in a list: a short job may have been measured once only.
            action["resourceUsage"] = usage if len(usage) > 1 else usage[0]
        return self.add(f"#control-{job.name}", "ControlAction", name=job.name, instrument=step, object=action)

    def add_action(self, identifier, description, tool, inputs, outputs, times):
        """Add something that ran: its tool, inputs, outputs, and times of start and end."""
        action = self.add(
            identifier,
            "CreateAction",
            name=description,
            description=description,
            instrument=tool,
            agent=self.agent,
            object=[self.add_path(path) for path in inputs],
            result=[self.add_path(path) for path in outputs],
            startTime=_format_time(times[0]),
            endTime=_format_time(times[1]),
            actionStatus=DONE,
        )
        self.crate.root_dataset.append_to("mentions", action)
        return action

    def add_usage(self, job):
        """Add the measured time and memory of a job."""
        file = self.root / self.results / f"benchmarks/{job.name}.tsv"
        measured = pd.read_csv(file, sep="\t", na_values="-").iloc[-1] if file.is_file() else {}
        return [
            self.add(
                f"#{column}-{job.name}",
                "PropertyValue",
                name=name,
                value=str(measured[column]),
                unitCode=unit,
                propertyID=f"{BENCHMARKS}:{column}",
            )
            for column, (name, unit) in MEASURED.items()
            if pd.notna(measured.get(column))
        ]

    def write(self, folder):
        """Write the packed files, the SHA-256 of every file, and the metadata."""
        properties = {"name": "SHA-256 of every file, for sha256sum", "encodingFormat": "text/plain"}
        self.crate.add_file(io.StringIO(format_checksums(self.hashes)), CHECKSUMS, properties=properties)
        self.crate.write(folder)
        for path in self.hashes:
            if self.is_packed(path) and not (folder / path).exists():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.root / path, folder / path)


def format_checksums(hashes):
    """The lines that `sha256sum --check` reads."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(hashes.items()))


def _unwrap(values):
    """The value of a list with one value, as RO-Crate expects; otherwise `values`."""
    return values[0] if isinstance(values, list) and len(values) == 1 else values


def _anchor(name):
    return "#" + re.sub(r"\W+", "-", name)


def _format_time(seconds):
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, nargs="*", help="the files passed to --configfile")
    parser.add_argument("--agent", default=None, help="who ran it; by default the first author in CITATION.cff")
    options = parser.parse_args()
    config = load_configuration(ROOT / "config.yaml", *options.study)
    try:
        print(pack(ROOT, config, studies=[path.as_posix() for path in options.study], agent=options.agent))
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
