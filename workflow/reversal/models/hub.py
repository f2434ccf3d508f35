"""Files on the Hugging Face hub, fetched at a pinned commit with their hashes checked.

`python -m reversal.models.hub STUDY` prints the pins that a study's unpinned files need.
"""

import re
import sys
from pathlib import Path

import yaml
from huggingface_hub import HfApi, constants, hf_hub_download

from ..common.download import require_safe, without_secrets
from ..common.errors import UserError
from ..common.files import sha256
from .folders import ModelError

UNPINNED = "unpinned"
# The files that a checkpoint is read from; a repository also has code, documents and weights in other formats.
NEEDED = re.compile(
    r"config\.json|model.*\.safetensors(\.index\.json)?|tokenizer.*\.json|(vocab|added_tokens)\.json|merges\.txt"
)


def is_unpinned(source):
    """Whether a {repo, revision, file, sha256} lacks its commit or its hash."""
    return UNPINNED in (source.get("revision"), source.get("sha256"))


def pin(source, **where):
    """`source`, a {repo, revision, file, sha256}, with the hub's current commit and SHA-256; a hash it has is kept.

    The hub knows the hashes of large files; small ones are downloaded to be hashed.
    """
    commit, files = _list_files(source["repo"], source["revision"], **where)
    if source["file"] not in files:
        raise UserError(f"{source['repo']} has no {source['file']}; it has {', '.join(sorted(files))}")
    digest = source["sha256"]
    if digest == UNPINNED:
        digest = _hash_file(source["repo"], files[source["file"]], commit, **where)
    return {**source, "revision": commit, "sha256": digest}


def pin_checkpoint(source, **where):
    """`source`, a {repo, revision, files}, with the hub's current commit and the SHA-256 of each file needed."""
    commit, listed = _list_files(source["repo"], source["revision"], **where)
    needed = sorted(name for name in listed if NEEDED.fullmatch(name))
    files = {name: _hash_file(source["repo"], listed[name], commit, **where) for name in needed}
    return {**source, "revision": commit, "files": files}


def pin_study(study, **where):
    """The part of a study (a dict) that has unpinned files, with them pinned."""
    models = {}
    for name, model in study.get("models", {}).items():
        sources = {kind: model.get("lit_gpt", {}).get(kind, {}) for kind in ("weights", "tokenizer")}
        pinned = {kind: pin(source, **where) for kind, source in sources.items() if is_unpinned(source)}
        if pinned:
            models[name] = {"lit_gpt": pinned}
        source = model.get(model.get("base"))
        if isinstance(source, dict) and UNPINNED in (source.get("revision"), source.get("files")):
            models[name] = {model["base"]: pin_checkpoint(source, **where)}
    return {"models": models} if models else {}


def _list_files(repo, revision, *, endpoint=None, **_):
    """The commit of a repository's revision (the newest, if unpinned), and its files by name."""
    api = HfApi(endpoint=_require_https(endpoint))
    info = api.model_info(repo, revision=None if revision == UNPINNED else revision, files_metadata=True)
    return info.sha, {file.rfilename: file for file in info.siblings}


def _hash_file(repo, file, commit, **where):
    return file.lfs.sha256 if file.lfs else sha256(download(repo, file.rfilename, commit, **where))


def _require_https(endpoint):
    """The hub's address `endpoint` (None: huggingface_hub's default or HF_ENDPOINT), to which a token may be sent."""
    require_safe(endpoint or constants.ENDPOINT)
    return endpoint


def download(repo, file, revision, *, cache=None, endpoint=None):
    """Download one file of a hub repository, with progress, resuming a partial download; returns its path."""
    endpoint = _require_https(endpoint)
    try:
        return Path(hf_hub_download(repo, file, revision=revision, cache_dir=cache, endpoint=endpoint))
    except Exception as error:
        reason = f"{type(error).__name__}: {without_secrets(str(error).splitlines()[0])}"
        raise ModelError(f"{repo}/{file} at {revision} could not be fetched: {reason}") from error


def describe(source):
    """The name of a source in a message."""
    return source["path"] if "path" in source else f"{source['repo']}/{source['file']}"


def locate(source, where):
    """The local path of `source`, its hash checked: a {path}, or a {repo, revision, file, sha256} on the hub."""
    if "path" in source:
        path = Path(source["path"])
        if not path.is_file():
            raise ModelError(f"{path}: no such file")
        if "sha256" in source:
            _check_hash(path, source["sha256"])
        return path
    if is_unpinned(source):
        raise ModelError(
            f"{describe(source)} is unpinned; allowed: its commit and SHA-256, which "
            "`python -m reversal.models.hub STUDY` asks the hub for, or a path"
        )
    return fetch(source["repo"], source["file"], source["revision"], source["sha256"], **where)


def fetch(repo, file, revision, digest, **where):
    """Download one file of a hub repository and check its SHA-256; `where` as in `download`."""
    if Path(file).suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"):
        raise ModelError(f"{repo}/{file}: weights are taken from .safetensors only")
    path = download(repo, file, revision, **where)
    _check_hash(path, digest)
    return path


def fetch_folder(repo, revision, files, **where):
    """Download a repository's `files`, {name: SHA-256}, at a commit; returns their folder; `where` as in `download`."""
    if UNPINNED in (revision, files):
        raise ModelError(
            f"{repo} is unpinned; allowed: its commit and the SHA-256 of its files, which "
            "`python -m reversal.models.hub STUDY` asks the hub for, or a folder"
        )
    return {fetch(repo, name, revision, digest, **where).parent for name, digest in files.items()}.pop()


def _check_hash(path, expected):
    if (actual := sha256(path)) != expected:
        raise ModelError(f"{path}: SHA-256 is {actual}, expected {expected}; the file is damaged or another one")


def main(study):
    """Print the pins that a study's file lacks."""
    pins = pin_study(yaml.safe_load(Path(study).read_text(encoding="utf-8")))
    if not pins:
        print(f"{study} has nothing to pin")
        return
    print(f"# The hub's answer. Put it into {study} if you trust it:")
    print(yaml.safe_dump(pins, sort_keys=False), end="")


if __name__ == "__main__":
    main(sys.argv[1])
