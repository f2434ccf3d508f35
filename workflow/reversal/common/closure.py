"""Which files of the library a script imports, directly or not, found by reading the text without running it."""

import functools
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
# Every job reads the rules, so this has to be quick: parsing each file would take a third of a second.
IMPORT = re.compile(r"^from (\.*)((?:reversal)?[\w.]*) import (\([^)]*\)|[^\n#]*)", re.M)
NO_RESULT_CHANGES_WITH = {
    "common/closure.py": "computes these lists",
    "study/configuration.py": "refuses configurations before any job runs",
    "common/download.py": "brings files whose hashes are pinned",
    "common/errors.py": "defines the error for users",
    "common/jobs.py": "logs, threads, and one-line errors",
    "models/hub.py": "brings files whose hashes are pinned",
}


def code_of(script, *modules):
    """The files, sorted, behind a `script`, and behind `modules` that it loads by name ("figures/recall.py")."""
    files = set()
    waiting = [*_imports(Path(script)), *(PACKAGE / module for module in modules)]
    while waiting:
        file = waiting.pop()
        if file not in files and file.relative_to(PACKAGE).as_posix() not in NO_RESULT_CHANGES_WITH:
            files.add(file)
            waiting += _imports(file)
    return sorted(files)


@functools.cache
def _imports(file):
    """The library's files that one file imports, without the packages' __init__ files, which compute nothing."""
    files = []
    for dots, module, names in IMPORT.findall(file.read_text(encoding="utf-8")):
        above = file.parents[len(dots) - 1] if dots else PACKAGE.parent
        start = above.joinpath(*filter(None, module.split(".")))
        for name in re.findall(r"(\w+)(?: as \w+)?", names):
            files += [path for path in (_module(start / name) or _module(start),) if path]
    return files


def _module(path):
    """The library's module at a path without suffix, or None."""
    file = path.with_name(f"{path.name}.py")
    return file if file.is_relative_to(PACKAGE) and file.is_file() else None
