"""Read the inputs of a figure from files, each by its kind, as `registry` names it."""

from pathlib import Path

import yaml

from ..data import facts
from ..recall import files as completion_files
from ..tracing import files as trace_files
from .read import read_runs, read_table


def read_input(kind, files):
    """One input of a figure: by the reader of its kind, or else a table; None where an optional input has no file."""
    files = [files] if isinstance(files, str) else list(files)
    if not files:
        return None
    return READERS[kind](files) if kind in READERS else read_table(*files)


def _read_completions(files):
    return read_runs(completion_files.read, files)


def _read_traces(folders):
    """{(model, split): traces of its facts} from folders …/{model}/seed_{seed}, each with a folder per split."""
    return {
        (folder.parent.name, split.name): trace_files.read(split)
        for folder in map(Path, folders)
        for split in sorted(folder.iterdir())
    }


READERS = {
    "completions": _read_completions,
    "example_completions": _read_completions,
    "histories": lambda files: read_runs(read_table, files),
    "traces": _read_traces,
    "facts": lambda files: facts.read_facts(*files),
    "training_rows": lambda files: facts.read(*files),
    "splits": lambda files: {Path(file).stem: facts.read(file) for file in files},
    "claim_list": lambda files: yaml.safe_load(Path(files[0]).read_text(encoding="utf-8")),
    "questions": lambda files: [row for file in files for row in facts.read(file)],
}
