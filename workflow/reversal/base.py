"""Where a model starts: bundled, pretrained here, from the Hugging Face hub, from a lit-gpt file, or from scratch."""

import hashlib
import shutil
from pathlib import Path

from . import facts, generate, model, pins, smdm, text, train
from .files import sha256, write_table
from .model import ModelError

TOKENIZER_TEXTS = 100_000  # more do not change which words a small vocabulary holds


def bundled(path, output):
    """Copy a model folder that ships with the project, its checksums compared."""
    net, tokenizer = model.load(path, device="cpu")
    model.save(net, tokenizer, output)


def scratch(rows, output, *, causal, network, seed):
    """A network with random weights and a tokenizer trained on the study's own training rows."""
    texts = [row.text for row in facts.read(rows)]
    tokenizer = text.train_tokenizer(texts, network["vocabulary"])
    model.save(_new(tokenizer, causal, network, seed), tokenizer, output)


def pretrain(
    output,
    history,
    *,
    causal,
    network,
    recipe,
    words,
    templates,
    people,
    rows,
    seed,
    checkpoints,
    vocabulary_of=None,
    job=None,
):
    """Train a network from scratch on biographies of people who are in no study.

    Its tokenizer knows their words, and those of the rows of the file `vocabulary_of`, which the network never sees.
    """
    sentences = {
        direction: generate.read_templates(Path(templates) / f"pretraining_{direction}.txt", asks=asks)
        for direction, asks in generate.DIRECTIONS.items()
    }
    lists = generate.read_words(words)
    texts = list(generate.biographies(lists, sentences, people_count=people, rows=rows, seed=seed))
    unseen = [row.text for row in facts.read(vocabulary_of)] if vocabulary_of else []
    tokenizer = text.train_tokenizer(texts[:TOKENIZER_TEXTS] + unseen, network["vocabulary"])
    if job:
        job.say(f"{rows} biographies of {people} people, SHA-256 {digest(texts)}; {len(tokenizer)} tokens")
    net = _new(tokenizer, causal, network, seed).to(model.default_device())
    plan = train.Recipe(**recipe, seed=seed)
    losses = train.fit(
        net,
        tokenizer(texts)["input_ids"],
        plan,
        cutter=text.Cutter(tokenizer, plan.cut) if plan.cut else None,
        checkpoints=checkpoints,
        job=job,
    )
    model.save(net, tokenizer, output)
    write_table(losses, history)
    shutil.rmtree(checkpoints, ignore_errors=True)


def digest(texts):
    """The SHA-256 of some texts, a line each."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _new(tokenizer, causal, network, seed):
    shape = {name: network[name] for name in ("width", "layers", "heads", "mlp", "context")}
    return model.new(causal=causal, vocab=len(tokenizer), eos=tokenizer.eos_token_id, seed=seed, **shape)


def hub(output, *, repo, revision, files, **where):
    """Any Hugging Face causal LM as the autoregressive model: its files at a pinned revision, each hash checked."""
    folder = {fetch(repo, name, revision, digest, **where).parent for name, digest in files.items()}.pop()
    net, tokenizer = model.load(folder, device="cpu")
    if tokenizer is None:
        raise ModelError(f"{repo}: tokenizer.json is not among its files")
    model.save(net, tokenizer, output)


def lit_gpt(output, *, causal, weights, tokenizer, n_head, eos_token="</s>", norm_eps=1e-5, block_size=2048, **where):
    """An SMDM checkpoint and a tokenizer.json, each a {path} here or a {repo, revision, file, sha256} on the hub."""
    reader = text.read_tokenizer(_located(tokenizer, where), eos_token)
    config = {"n_head": n_head, "norm_eps": norm_eps, "block_size": block_size, "eos_token_id": reader.eos_token_id}
    net = smdm.load(_located(weights, where), config, causal=causal)
    if model.vocab(net) != len(reader):
        raise ModelError(
            f"{_named(tokenizer)} has {len(reader)} tokens, but {_named(weights)} {model.vocab(net)}; "
            "a checkpoint needs the tokenizer it was trained with"
        )
    model.save(net, reader, output)


def _named(source):
    return source["path"] if "path" in source else f"{source['repo']}/{source['file']}"


def _located(source, where):
    if "path" in source:
        path = Path(source["path"])
        if not path.is_file():
            raise ModelError(f"{path}: no such file")
        if "sha256" in source:
            _require(path, source["sha256"])
        return path
    if pins.unpinned(source):
        raise ModelError(
            f"{_named(source)} is unpinned; allowed: its commit and SHA-256, which "
            "`python -m workflow.reversal.pins STUDY` asks the hub for, or a path"
        )
    return fetch(source["repo"], source["file"], source["revision"], source["sha256"], **where)


def fetch(repo, file, revision, digest, **where):
    """Download one file of a hub repository and check its SHA-256; `where` as in `pins.download`."""
    if Path(file).suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"):
        raise ModelError(f"{repo}/{file}: weights are taken from .safetensors only")
    path = pins.download(repo, file, revision, **where)
    _require(path, digest)
    return path


def _require(path, digest):
    found = sha256(path)
    if found != digest:
        raise ModelError(f"{path}: SHA-256 is {found}, expected {digest}; the file is damaged or another one")
