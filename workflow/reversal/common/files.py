"""Files that are whole or absent, never half-written; held by one process; noticed when they change."""

import errno
import fcntl
import hashlib
import json
import os
import secrets
from contextlib import contextmanager
from pathlib import Path

from .errors import UserError

DECIMALS = 12  # of numbers in tables
HASHES = Path(".snakemake/hashes")  # of what jobs left, each file's under its own path
CHECKSUMS = "checksums.json"  # of a model; a folder that has them is verified by who reads it
TIMESTAMP = ".snakemake_timestamp"  # which Snakemake adds to folders that jobs made
TOUCHED = 60  # seconds within which Snakemake touches what a job left
FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up", errno.EFBIG: "the file is too large"}
_held = []  # open files whose locks last as long as the process


@contextmanager
def atomic(path):
    """Yield a binary file that becomes `path` when the block ends well; otherwise `path` stays as it was."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The same folder, so that the rename never crosses a file system; a plain open, so that the umask holds.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(draft, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def sha256(path):
    """The SHA-256 of a file, as 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hold(path, *, waiting=None):
    """Lock the file `path` until this process ends, however it ends; True once it is held.

    Where another process holds it: call `waiting` and wait, or, without one, return False.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "a")  # noqa: SIM115  (closed by the end of the process)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if waiting is None:
            file.close()
            return False
        waiting()
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):  # file systems without locks
            raise
    _held.append(file)
    return True


def record(paths):
    """Note the SHA-256 of the files, and of the files in the folders, `paths`."""
    for path in map(Path, paths):
        if sums := _sums(path):
            with atomic(HASHES / f"{path}.json") as file:
                file.write(json.dumps(sums).encode())


def verify(paths, *, tell=print):
    """Compare files and folders with what `record` noted when they were made; what it never saw passes.

    A table that someone wrote to since then is theirs to change: that is told, not refused.
    """
    for path in map(Path, paths):
        note = HASHES / f"{path}.json"
        if not note.is_file():
            continue
        try:
            noted, found = json.loads(note.read_bytes()), _sums(path)
        except ValueError:
            raise UserError(f"{note} is damaged; delete it and {path} to have that made again") from None
        if noted != found and path.suffix == ".csv" and path.stat().st_mtime > note.stat().st_mtime + TOUCHED:
            tell(f"{path} was changed after it was made; it is used as it is")
            continue
        for name in sorted(noted.keys() | found.keys()):
            if noted.get(name) != found.get(name):
                what = "is missing" if name not in found else "is new" if name not in noted else "changed"
                raise UserError(
                    f"{path / name if name else path} {what} since it was made; delete {path} to have it made again"
                )


def _sums(path):
    """The SHA-256 of a file by the name "", of a model's checksums, or of each file in a folder by its own."""
    if path.is_absolute():
        return {}
    if path.is_file():
        return {"": sha256(path)}
    if (path / CHECKSUMS).is_file():
        return {CHECKSUMS: sha256(path / CHECKSUMS)}
    inside = (file for file in sorted(path.rglob("*")) if file.is_file() and file.name != TIMESTAMP)
    return {str(file.relative_to(path)): sha256(file) for file in inside}


def full(error):
    """In words, whether an `OSError`, or what it was made from, says that there was no room; None if it does not."""
    for code, words in FULL.items():
        if getattr(error, "errno", None) == code or f"(os error {code})" in str(error):
            return words
    return None


def write_table(table, path):
    """A DataFrame as CSV, whole or not at all; the same table gives the same bytes.

    Numbers are rounded, so that a difference which is none does not read 1.4e-17.
    """
    measured = table.select_dtypes("float")
    table = table.assign(**(measured.round(DECIMALS) + 0.0))  # no −0.0
    with atomic(path) as file:
        file.write(table.to_csv(index=False, lineterminator="\n").encode())
