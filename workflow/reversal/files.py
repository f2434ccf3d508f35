"""Files that are whole or absent, never half-written."""

import hashlib
import os
import secrets
from contextlib import contextmanager
from pathlib import Path


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


def write_table(table, path):
    """A DataFrame as CSV, whole or not at all; the same table gives the same bytes."""
    with atomic(path) as file:
        file.write(table.to_csv(index=False, lineterminator="\n").encode())
