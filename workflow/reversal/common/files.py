"""Safe files: written whole or not at all, locked by one process, and checked for changes since they were made."""

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
HASHES = Path(".snakemake/hashes")  # of the outputs of jobs, each under its own path
CHECKSUMS = "checksums.json"  # of a model folder; whoever loads the model verifies them
TIMESTAMP = ".snakemake_timestamp"  # added by Snakemake to output folders
TOUCHED = 60  # seconds within which Snakemake touches the outputs of a job
FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up", errno.EFBIG: "the file is too large"}
_locks = []  # open files whose locks last as long as the process


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


def lock(path, *, waiting=None):
    """Lock the file `path` until this process ends, however it ends; True once it is locked.

    If another process has the lock: call `waiting` and wait, or, without `waiting`, return False.
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
    _locks.append(file)
    return True


def record_hashes(paths):
    """Save the SHA-256 of the files, and of the files in the folders, `paths`."""
    for path in map(Path, paths):
        if hashes := _hash_files(path):
            with atomic(HASHES / f"{path}.json") as file:
                file.write(json.dumps(hashes).encode())


def verify_hashes(paths, *, warn=print):
    """Raise an error if inputs changed since `record_hashes`; a CSV edited by hand only warns.

    Paths without a record pass.
    """
    for path in map(Path, paths):
        record = HASHES / f"{path}.json"
        if not record.is_file():
            continue
        try:
            expected, actual = json.loads(record.read_bytes()), _hash_files(path)
        except ValueError:
            raise UserError(f"{record} is damaged; delete it and {path}, and run again") from None
        if expected != actual and path.suffix == ".csv" and path.stat().st_mtime > record.stat().st_mtime + TOUCHED:
            warn(f"{path} was changed after it was made; it is used as it is")
            continue
        for name in sorted(expected.keys() | actual.keys()):
            if expected.get(name) != actual.get(name):
                state = "is missing" if name not in actual else "is new" if name not in expected else "changed"
                raise UserError(
                    f"{path / name if name else path} {state} since it was made; delete {path} and run again"
                )


def _hash_files(path):
    """{name: SHA-256} of a file (by the name ""), of a model's list of checksums, or of each file in a folder."""
    if path.is_absolute():
        return {}
    if path.is_file():
        return {"": sha256(path)}
    if (path / CHECKSUMS).is_file():
        return {CHECKSUMS: sha256(path / CHECKSUMS)}
    content = (file for file in sorted(path.rglob("*")) if file.is_file() and file.name != TIMESTAMP)
    return {str(file.relative_to(path)): sha256(file) for file in content}


def describe_full_disk(error):
    """Why an error means that a file could not be stored ("the disk is full", …), or None."""
    for code, reason in FULL.items():
        if getattr(error, "errno", None) == code or f"(os error {code})" in str(error):
            return reason
    return None


def write_table(table, path):
    """Write a DataFrame as CSV, whole or not at all; the same table gives the same bytes.

    Numbers are rounded to DECIMALS, so that a difference of zero does not read 1.4e-17.
    """
    measured = table.select_dtypes("float")
    table = table.assign(**(measured.round(DECIMALS) + 0.0))  # no −0.0
    with atomic(path) as file:
        file.write(table.to_csv(index=False, lineterminator="\n").encode())
