"""Files on the Hugging Face hub: fetched at a pinned commit, their hashes checked.

`python -m reversal.models.hub STUDY` prints what a study with unpinned files lacks.
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
# Of a repository with code, documents and weights in other formats, what a checkpoint is read from.
NEEDED = re.compile(
    r"config\.json|model.*\.safetensors(\.index\.json)?|tokenizer.*\.json|(vocab|added_tokens)\.json|merges\.txt"
)


def unpinned(source):
    """Whether a {repo, revision, file, sha256} lacks its commit or its hash."""
    return UNPINNED in (source.get("revision"), source.get("sha256"))


def pin(source, **where):
    """The same with its commit and SHA-256, as the hub has them now; a hash that was there is not changed.

    The hub knows the hashes of large files; small ones are downloaded to be hashed.
    """
    commit, files = _listed(source["repo"], source["revision"], **where)
    if source["file"] not in files:
        raise UserError(f"{source['repo']} has no {source['file']}; it has {', '.join(sorted(files))}")
    digest = source["sha256"]
    if digest == UNPINNED:
        digest = _digest(source["repo"], files[source["file"]], commit, **where)
    return {**source, "revision": commit, "sha256": digest}


def _listed(repo, revision, *, endpoint=None, **_):
    """The commit of a repository's revision, and its files by name."""
    api = HfApi(endpoint=_https(endpoint))
    info = api.model_info(repo, revision=_given(revision), files_metadata=True)
    return info.sha, {file.rfilename: file for file in info.siblings}


def _digest(repo, file, commit, **where):
    return file.lfs.sha256 if file.lfs else sha256(download(repo, file.rfilename, commit, **where))


def _https(endpoint):
    """The hub's address (None: what huggingface_hub and HF_ENDPOINT say), which a token may be sent to."""
    require_safe(endpoint or constants.ENDPOINT)
    return endpoint


def _given(revision):
    return None if revision == UNPINNED else revision


def download(repo, file, revision, *, cache=None, endpoint=None):
    """The path of one file of a hub repository, downloaded; shows progress, resumes what was broken off."""
    endpoint = _https(endpoint)
    try:
        return Path(hf_hub_download(repo, file, revision=revision, cache_dir=cache, endpoint=endpoint))
    except Exception as error:
        reason = f"{type(error).__name__}: {without_secrets(str(error).splitlines()[0])}"
        raise ModelError(f"{repo}/{file} at {revision} could not be fetched: {reason}") from error


def named(source):
    """What to call a source in a message."""
    return source["path"] if "path" in source else f"{source['repo']}/{source['file']}"


def located(source, where):
    """The file of a {path} here, or of a {repo, revision, file, sha256} on the hub, its hash checked."""
    if "path" in source:
        path = Path(source["path"])
        if not path.is_file():
            raise ModelError(f"{path}: no such file")
        if "sha256" in source:
            _require(path, source["sha256"])
        return path
    if unpinned(source):
        raise ModelError(
            f"{named(source)} is unpinned; allowed: its commit and SHA-256, which "
            "`python -m reversal.models.hub STUDY` asks the hub for, or a path"
        )
    return fetch(source["repo"], source["file"], source["revision"], source["sha256"], **where)


def fetch(repo, file, revision, digest, **where):
    """Download one file of a hub repository and check its SHA-256; `where` as in `download`."""
    if Path(file).suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"):
        raise ModelError(f"{repo}/{file}: weights are taken from .safetensors only")
    path = download(repo, file, revision, **where)
    _require(path, digest)
    return path


def folder(repo, revision, files, **where):
    """The folder of a repository's `files`, {name: SHA-256}, fetched at a commit; `where` as in `download`."""
    if UNPINNED in (revision, files):
        raise ModelError(
            f"{repo} is unpinned; allowed: its commit and the SHA-256 of its files, which "
            "`python -m reversal.models.hub STUDY` asks the hub for, or a folder"
        )
    return {fetch(repo, name, revision, digest, **where).parent for name, digest in files.items()}.pop()


def _require(path, digest):
    found = sha256(path)
    if found != digest:
        raise ModelError(f"{path}: SHA-256 is {found}, expected {digest}; the file is damaged or another one")


def pin_checkpoint(source, **where):
    """A {repo, revision, files} with its commit and its files' SHA-256, as the hub has them now."""
    commit, listed = _listed(source["repo"], source["revision"], **where)
    needed = sorted(name for name in listed if NEEDED.fullmatch(name))
    files = {name: _digest(source["repo"], listed[name], commit, **where) for name in needed}
    return {**source, "revision": commit, "files": files}


def overlay(study, **where):
    """The part of a study (a dict) that has unpinned files, with them pinned."""
    models = {}
    for name, own in study.get("models", {}).items():
        sources = {kind: own.get("lit_gpt", {}).get(kind, {}) for kind in ("weights", "tokenizer")}
        found = {kind: pin(source, **where) for kind, source in sources.items() if unpinned(source)}
        if found:
            models[name] = {"lit_gpt": found}
        source = own.get(own.get("base"))
        if isinstance(source, dict) and UNPINNED in (source.get("revision"), source.get("files")):
            models[name] = {own["base"]: pin_checkpoint(source, **where)}
    return {"models": models} if models else {}


def main(study):
    """Print the pins that a study's file lacks."""
    found = overlay(yaml.safe_load(Path(study).read_text(encoding="utf-8")))
    if not found:
        print(f"{study} has nothing to pin")
        return
    print(f"# The hub's answer. Put it into {study} if you trust it:")
    print(yaml.safe_dump(found, sort_keys=False), end="")


if __name__ == "__main__":
    main(sys.argv[1])
