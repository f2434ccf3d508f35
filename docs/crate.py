"""Pack a finished study with all that made it: `make crate` writes results/<study>/crate, a Workflow Run RO-Crate.

    python -m docs.crate
    python -m docs.crate studies/published.yaml --agent "Jane Doe"

Unpacked, it is the project with the study's tables, figures and post in place. What is large, or made from data that
may not be handed on, stays behind: the crate names it with its SHA-256, and checksums.sha256 has those of all files.
Who and what it is about is told by CITATION.cff, what each job read and left by Snakemake's own records.
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

from .reference import configuration

ROOT = Path(__file__).resolve().parent.parent
# What the study is made with, as it lies here; what it leaves that goes along.
PROJECT = ("Snakefile", "config.yaml", "workflow", "studies", "profiles", "envs", "data", "paper", "requirements.txt")
PROJECT += ("pyproject.toml", "Makefile", "Dockerfile", "config", "docs", "README.md", "LICENSE", "CITATION.cff")
SHOWN = ("tables", "figures", "paper")
CHECKSUMS = "checksums.sha256"
# The words beside RO-Crate's own, spelt out, so that a reader needs no other vocabulary at hand.
TERMS = {term: f"https://w3id.org/ro/terms/workflow-run#{term}" for term in ("sha256", "resourceUsage")}
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/ro/wfrun/provenance/0.5": "Provenance Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
WORKFLOW_PROFILE = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
# Columns of Snakemake's benchmarks: what they are, and in which unit (UN/CEFACT).
MEASURED = {"s": ("wall time", "SEC"), "cpu_time": ("CPU time", "SEC"), "max_rss": ("peak memory", "4L")}
BENCHMARKS = "https://snakemake.readthedocs.io/en/stable/snakefiles/rules.html#benchmark-rules"
FORMATS = mimetypes.MimeTypes()  # Python's own list, whatever this machine has beside it
for ending, form in {"jsonl": "application/jsonl", "md": "text/markdown", "yaml": "application/yaml"}.items():
    FORMATS.add_type(form, f".{ending}")
FORMATS.add_type("application/octet-stream", ".safetensors")
DONE = "http://schema.org/CompletedActionStatus"


class Job(NamedTuple):
    """One job of the run, as Snakemake recorded it; paths relative to the project."""

    name: str  # its log's: a rule, and what of it
    rule: str
    script: str
    inputs: tuple
    outputs: tuple
    began: float  # seconds since 1970
    ended: float


def jobs(root, results, source):
    """The jobs that left what is in the folder `results`, in the order of their beginning; `source` is of the data."""
    found = {}
    records = root / ".snakemake/metadata"
    for file in sorted(path for path in records.rglob("*") if path.is_file()):
        # Snakemake names a record by its output in base 64; a long one is spread over folders.
        parts = (part.removeprefix("@") for part in file.relative_to(records).parts)
        output = base64.urlsafe_b64decode("".join(parts)).decode()
        record = json.loads(file.read_bytes())
        code = (record["code"] or "").replace("{DATA['source']}", source)  # as the rules spell it
        script = re.search(r'"\.\./(scripts/\w+\.py)"', code)
        if script and Path(output).is_relative_to(results) and (root / output).exists():
            found.setdefault((record["rule"], record["log"][0]), []).append((output, record, f"workflow/{script[1]}"))
    made = [_job(rule, log, told, results) for (rule, log), told in found.items()]
    return sorted(made, key=lambda job: (job.began, job.name))


def _job(rule, log, told, results):
    outputs, records, scripts = zip(*told, strict=True)
    return Job(
        name=Path(log).relative_to(f"{results}/logs").with_suffix("").as_posix(),
        rule=rule,
        script=scripts[0],
        # The code is told by the script and its folder.
        inputs=tuple(sorted(path for path in records[0]["input"] if not path.startswith("workflow/"))),
        outputs=outputs,
        began=min(record["starttime"] for record in records),
        ended=max(record["endtime"] for record in records),
    )


def sums(root, paths):
    """{file: SHA-256} of files, and of the files in folders, below `root`."""
    found = {}
    for path in (root / path for path in paths):
        for file in [path] if path.is_file() else path.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts and file.name != files.TIMESTAMP:
                found[(file.relative_to(root) if file.is_relative_to(root) else file).as_posix()] = file
    return {name: files.sha256(file) for name, file in sorted(found.items())}


def pack(root, config, *, studies=(), agent=None):
    """Write the crate of a study of `root`, whose configuration is `config`, made from the files `studies`."""
    results = f"results/{config['study']}"
    run = jobs(root, results, config["data"]["source"])
    if not run:
        raise UserError(f"{results} has no finished run; `make` makes the default study's")
    if outside := [study for study in studies if Path(study).parts[0] not in PROJECT]:
        raise UserError(f"{outside[0]} would not be in the crate; put it in studies/")
    left = [output for job in run for output in job.outputs]
    with contextlib.chdir(root):
        files.verify_hashes(left)
    hashes = sums(root, [*PROJECT, *left, *(path for job in run for path in job.inputs)])
    folder = root / results / "crate"
    shutil.rmtree(folder, ignore_errors=True)
    made = Crate(root, results, hashes)
    made.describe(config, run, agent=agent)
    made.tell_workflow(config, studies)
    made.tell_run(run, studies)
    made.write(folder)
    return folder


class Crate:
    """A crate while it is filled."""

    def __init__(self, root, results, hashes):
        self.root, self.results, self.hashes = root, results, hashes
        self.crate = ROCrate(version="1.1", gen_preview=True)
        self.crate.metadata.extra_terms.update(TERMS)
        self.citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))

    def add(self, identifier, kind, **told):
        """An entity that is no file, by its identifier; what it is told first stays."""
        told = {"@type": kind} | {key: _plain(value) for key, value in told.items() if value != []}
        return self.crate.get(identifier) or self.crate.add(ContextEntity(self.crate, identifier, properties=told))

    def goes_along(self, path):
        """Whether a file or folder is in the crate, and not only named."""
        inside = [f"{self.results}/{name}" for name in SHOWN]
        return any(Path(path).is_relative_to(whole) for whole in (*PROJECT, *inside))

    def file(self, path, kinds="File", **told):
        """The entity of a file or folder of the project, with its SHA-256; a folder's is that of its files' list."""
        is_folder = (self.root / path).is_dir()
        identifier = f"{'' if self.goes_along(path) else '#'}{path}{'/' if is_folder else ''}"
        if known := self.crate.get(identifier):
            return known
        told = {"@type": "Dataset" if is_folder else kinds, "name": str(path), **told}
        own = {name: digest for name, digest in self.hashes.items() if Path(name).is_relative_to(path)}
        told["sha256"] = hashlib.sha256(listing(own).encode()).hexdigest() if is_folder else own[str(path)]
        told["contentSize"] = str(sum((self.root / name).stat().st_size for name in own))
        if not is_folder:
            told["encodingFormat"] = FORMATS.guess_type(path)[0] or "text/plain"
        if not self.goes_along(path):
            return self.add(identifier, told.pop("@type"), **told)
        adding = self.crate.add_dataset if is_folder else self.crate.add_file
        return adding(None if is_folder else self.root / path, identifier, properties=told)

    def describe(self, config, run, *, agent):
        """Who, what, when, under which licence, and after which profiles."""
        licence = self.citation["license"]
        root = self.crate.root_dataset
        root["name"] = f"{self.citation['title']}: the study {config['study']}"
        root["description"] = "A run of the workflow: what it was made with, and what it left."
        root["datePublished"] = f"{_time(run[-1].ended)[:10]}"
        root["license"] = self.add(
            f"https://spdx.org/licenses/{licence}", "CreativeWork", name=licence, description=f"{licence} licence"
        )
        root["conformsTo"] = [
            self.add(address, "CreativeWork", name=name, version=address.rsplit("/")[-1])
            for address, name in PROFILES.items()
        ]
        authors = [self.person(author) for author in self.citation["authors"]]
        root["author"] = _plain(authors)
        self.agent = self.add(_anchor(agent), "Person", name=agent) if agent else authors[0]

    def person(self, author):
        """An author as CITATION.cff has them: a person, or a name alone."""
        names = [author[part] for part in ("given-names", "family-names") if part in author]
        name = " ".join(names) or author["name"]
        told = {"name": name} | ({"url": author["website"]} if "website" in author else {})
        return self.add(author.get("orcid", _anchor(name)), "Person" if names else "Organization", **told)

    def tell_workflow(self, config, studies):
        """The Snakefile with what it is written in, what it needs, and what goes in and out."""
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
            self.file(path)
        crate.get("README.md")["about"] = crate.root_dataset
        self.snakefile["conformsTo"] = self.add(
            WORKFLOW_PROFILE, "CreativeWork", name="ComputationalWorkflow", version="1.0"
        )
        if "repository-code" in self.citation:
            self.snakefile["url"] = self.citation["repository-code"]
        self.snakefile["softwareRequirements"] = [self.software(name) for name in ("python", *self.pinned())]
        self.snakefile["input"] = self.parameter("configuration", "File", ["config.yaml", *studies])

    def pinned(self):
        """The packages that requirements.txt names."""
        return re.findall(r"^([\w.-]+)==", (self.root / "requirements.txt").read_text(encoding="utf-8"), re.M)

    def software(self, name):
        """A package with the version that is installed here."""
        if name == "python":
            version, address = platform.python_version(), "https://www.python.org/"
        else:
            version = importlib.metadata.version(name)
            address = f"https://pypi.org/project/{name}/{version}/"
        return self.add(address, "SoftwareApplication", name=name, softwareVersion=version, url=address)

    def parameter(self, name, kind, paths):
        """What goes into the workflow or comes out, by the name it has there, and what it was in this run."""
        examples = [self.file(path) for path in paths]
        parameter = self.add(
            f"#parameter-{name}", "FormalParameter", name=name, additionalType=kind, workExample=examples
        )
        for example in examples:
            example["exampleOfWork"] = parameter
        return parameter

    def tell_run(self, run, studies):
        """The jobs and what they cost, each with its step of the workflow; and the run as a whole."""
        post = [path for job in run for path in job.outputs if path == f"{self.results}/paper/index.html"]
        self.snakefile["output"] = [
            *([self.parameter("post", "File", post)] if post else []),
            *(self.parameter(name, "Dataset", [f"{self.results}/{name}"]) for name in ("tables", "figures")),
        ]
        given = sorted({path for job in run for path in job.inputs if not path.startswith("results/")})
        whole = self.action(
            f"#run-{Path(self.results).name}",
            f"The study {Path(self.results).name}",
            self.snakefile,
            ["config.yaml", *studies, *given],
            [*post, *sorted({path for job in run for path in job.outputs} - set(post))],
            (min(job.began for job in run), max(job.ended for job in run)),
        )
        steps = [self.job(job, position) for position, job in enumerate(run, start=1)]
        self.snakefile["hasPart"] = _plain([self.file(path) for path in dict.fromkeys(job.script for job in run)])
        self.snakefile["step"] = _plain(
            [self.crate.get(f"#step-{rule}") for rule in dict.fromkeys(j.rule for j in run)]
        )
        engine = self.software("snakemake")
        self.add(
            f"#engine-{Path(self.results).name}",
            "OrganizeAction",
            name=f"Snakemake {engine['softwareVersion']}",
            instrument=engine,
            object=steps,
            result=whole,
            agent=self.agent,
        )

    def job(self, job, position):
        """One job: its action, and the `ControlAction` that says which step of the workflow it was."""
        about = ast.get_docstring(ast.parse((self.root / job.script).read_text(encoding="utf-8")))
        script = self.file(job.script, ["File", "SoftwareSourceCode"], version=self.snakefile["version"])
        step = self.add(f"#step-{job.rule}", "HowToStep", name=job.rule, position=str(position), workExample=script)
        action = self.action(f"#job-{job.name}", about, script, job.inputs, job.outputs, (job.began, job.ended))
        action["name"] = job.name
        if usage := self.usage(job):
            action["resourceUsage"] = usage
        return self.add(f"#control-{job.name}", "ControlAction", name=job.name, instrument=step, object=action)

    def action(self, identifier, about, tool, inputs, outputs, times):
        """Something that ran: with what, on what, from when to when, and what came out."""
        action = self.add(
            identifier,
            "CreateAction",
            name=about,
            description=about,
            instrument=tool,
            agent=self.agent,
            object=[self.file(path) for path in inputs],
            result=[self.file(path) for path in outputs],
            startTime=_time(times[0]),
            endTime=_time(times[1]),
            actionStatus=DONE,
        )
        self.crate.root_dataset.append_to("mentions", action)
        return action

    def usage(self, job):
        """What a job cost, where it was measured."""
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
        """Write it all: the files that go along, the list of every file's SHA-256, and the metadata."""
        told = {"name": "SHA-256 of every file, for sha256sum", "encodingFormat": "text/plain"}
        self.crate.add_file(io.StringIO(listing(self.hashes)), CHECKSUMS, properties=told)
        self.crate.write(folder)
        for path in self.hashes:
            if self.goes_along(path) and not (folder / path).exists():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.root / path, folder / path)


def listing(hashes):
    """Lines that `sha256sum --check` reads."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(hashes.items()))


def _plain(values):
    """The value itself of a list that has but one, as RO-Crate wants it."""
    return values[0] if isinstance(values, list) and len(values) == 1 else values


def _anchor(name):
    return "#" + re.sub(r"\W+", "-", name)


def _time(seconds):
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, nargs="*", help="the files given to --configfile")
    parser.add_argument("--agent", default=None, help="who ran it; the authors in CITATION.cff unless said")
    options = parser.parse_args()
    config = configuration(ROOT / "config.yaml", *options.study)
    try:
        print(pack(ROOT, config, studies=[path.as_posix() for path in options.study], agent=options.agent))
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
