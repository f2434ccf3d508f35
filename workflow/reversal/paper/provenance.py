"""Where a table or a figure comes from: rule, script, study, configuration, commit, and when it was made."""

import hashlib
import json
import os
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from . import numbers


class Provenance(NamedTuple):
    """Where the tables and figures of a page come from."""

    study: str
    configuration: str  # fingerprint
    commit: str
    makers: dict  # {file: (rule, script)}, files like tables/costs.csv
    times: dict  # {file: datetime}
    runs: dict  # {reference run: its provenance.json}

    def of(self, file):
        """One line about a file of this run."""
        rule, script = self.makers[file]
        parts = [f"rule {rule} ({script})", f"study {self.study}", f"configuration {self.configuration}"]
        return " · ".join([*parts, f"commit {self.commit}", f"made {self.times[file]:%Y-%m-%d %H:%M} UTC"])

    def of_run(self, run):
        """One line about a reference run."""
        made = self.runs.get(run, {})
        parts = [f"reference run {run}", *(made[key] for key in ("study", "hardware", "remark") if key in made)]
        return " · ".join(
            [*parts, *(f"{key} {made[key]}" for key in ("configuration", "commit", "date") if key in made)]
        )

    def of_quantity(self, quantity, run):
        """One line about a number: run, table, rows and rule."""
        return f"{numbers.describe(quantity, run)}; {self.rule(f'tables/{quantity.table}.csv')}"

    def rule(self, file):
        """The rule that makes a file, here or in another run."""
        return f"rule {self.makers[file][0]}" if file in self.makers else "not made by this study"


def fingerprint(config):
    """Twelve digits that change with the configuration."""
    canonical = json.dumps(config, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def commit(folder):
    """The commit checked out in `folder`, "+" after it where tracked files differ; "unknown" outside a repository.

    A folder that was taken from a repository, without its history, bears the name of its commit.
    """
    if re.fullmatch(r"[0-9a-f]{40}", Path(folder).name):
        return Path(folder).name[:12]

    def git(*command):
        return subprocess.run(
            ["git", "-C", str(folder), *command], capture_output=True, text=True, check=True, timeout=20
        ).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != Path(folder).resolve():
            return "unknown"
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def made(file):
    """When a file was made; SOURCE_DATE_EPOCH, where it is set, speaks for all of them."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    return datetime.fromtimestamp(float(epoch) if epoch else Path(file).stat().st_mtime, UTC)
