"""Model folders in Hugging Face layout: written atomically, with a file of checksums. No network is needed."""

import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

from ..common.errors import UserError
from ..common.files import CHECKSUMS, sha256

PUBLISHED = ("llada", "Dream")  # model_types that `layouts` reads; it needs torch, and this module does not


class ModelError(UserError):
    """A model file that cannot be used; the message is one line."""


@contextmanager
def write_atomically(path):
    """A temporary folder for a model's files, moved to `path` with their checksums if the block raises no error."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield draft
        for file in draft.iterdir():
            file.chmod(0o644)  # safetensors writes files that only their owner can read
        sums = {file.name: sha256(file) for file in sorted(draft.iterdir())}
        (draft / CHECKSUMS).write_text(json.dumps(sums, indent=1) + "\n")
        draft.chmod(0o755)  # mkdtemp makes it private
        if path.exists():
            shutil.rmtree(path)
        os.replace(draft, path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def copy(path, output, *, causal):
    """Copy a model folder after checking its checksums; a model of the other family raises an error."""
    verify(path)
    if not (Path(path) / "tokenizer.json").is_file():
        raise ModelError(f"{path}: no tokenizer.json; a base needs its tokenizer")
    config = read_json(Path(path) / "config.json")
    if config.get("model_type") in PUBLISHED:
        raise ModelError(
            f"{path}/config.json: model_type is {config['model_type']!r}; it is read with base: checkpoint, "
            f"checkpoint: {{ folder: {path} }}"
        )
    masked = config.get("mask_token_id") is not None
    if causal == masked:
        family = "a diffusion model's" if masked else "an autoregressive model's"
        wanted = "autoregressive" if causal else "diffusion"
        raise ModelError(f"{path}/config.json is {family}, by its mask_token_id; the configuration says {wanted}")
    with write_atomically(output) as draft:
        for file in Path(path).iterdir():
            if file.is_file() and file.name != CHECKSUMS:
                shutil.copyfile(file, draft / file.name)


def link(path, output):
    """Make a second model folder of hard links to the files of the first, or of copies where links are impossible."""
    verify(path)
    with write_atomically(output) as draft:
        for file in Path(path).iterdir():
            # Hidden files are Snakemake's, which sets their times: a shared one would make the other folder look new.
            if file.is_file() and file.name != CHECKSUMS and not file.name.startswith("."):
                try:
                    os.link(file, draft / file.name)
                except OSError:
                    shutil.copyfile(file, draft / file.name)


def read_json(file):
    """The JSON object in a file of a model folder."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ModelError(f"{file}: not a JSON object")
    return content


def checksums(path):
    """The hashes of a model folder's files as one text, which changes when any of them does."""
    files = sorted(file for file in Path(path).iterdir() if file.suffix in (".json", ".safetensors"))
    return json.dumps({file.name: sha256(file) for file in files if file.name != CHECKSUMS})


def verify(path):
    """Raise an error if a folder is not a model's, or if its files differ from its checksums, where it has any."""
    path = Path(path)
    if not (path / "config.json").is_file():
        raise ModelError(f"{path}: no config.json; a model folder has config.json, *.safetensors and tokenizer.json")
    if not list(path.glob("*.safetensors")):
        raise ModelError(f"{path}: no *.safetensors; weights in other formats are never loaded")
    if not (path / CHECKSUMS).is_file():
        return
    for name, expected in read_json(path / CHECKSUMS).items():
        file = path / name
        if not file.is_file():
            raise ModelError(f"{file}: missing, though {CHECKSUMS} lists it")
        if sha256(file) != expected:
            raise ModelError(f"{file}: SHA-256 differs from {CHECKSUMS}; the file was changed or damaged")
