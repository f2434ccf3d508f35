"""Where a model starts: bundled, pretrained here, from the Hugging Face hub, from a lit-gpt file, or from scratch."""

import hashlib
import shutil
from pathlib import Path

from ..common.files import write_table
from ..data import facts, generated
from ..models import hub, network, smdm, tokens
from ..models.network import ModelError
from . import loop

TOKENIZER_TEXTS = 100_000  # more do not change which words a small vocabulary holds


def from_folder(path, output):
    """Copy a model folder that ships with the project, its checksums compared."""
    net, tokenizer = network.load(path, device="cpu")
    network.save(net, tokenizer, output)


def scratch(rows, output, *, causal, shape, seed):
    """A network with random weights and a tokenizer trained on the study's own training rows."""
    texts = [row.text for row in facts.read(rows)]
    tokenizer = tokens.train_tokenizer(texts, shape["vocabulary"])
    network.save(_new(tokenizer, causal, shape, seed), tokenizer, output)


def pretrain(
    output,
    history,
    *,
    causal,
    shape,
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
        direction: generated.read_templates(Path(templates) / f"pretraining_{direction}.txt", asks=asks)
        for direction, asks in generated.DIRECTIONS.items()
    }
    lists = generated.read_words(words)
    texts = list(generated.biographies(lists, sentences, people_count=people, rows=rows, seed=seed))
    unseen = [row.text for row in facts.read(vocabulary_of)] if vocabulary_of else []
    tokenizer = tokens.train_tokenizer(texts[:TOKENIZER_TEXTS] + unseen, shape["vocabulary"])
    if job:
        job.say(f"{rows} biographies of {people} people, SHA-256 {digest(texts)}; {len(tokenizer)} tokens")
    net = _new(tokenizer, causal, shape, seed).to(network.default_device())
    plan = loop.Recipe(**recipe, seed=seed)
    losses = loop.fit(
        net,
        tokenizer(texts)["input_ids"],
        plan,
        cutter=tokens.Cutter(tokenizer, plan.cut) if plan.cut else None,
        checkpoints=checkpoints,
        job=job,
    )
    network.save(net, tokenizer, output)
    write_table(losses, history)
    shutil.rmtree(checkpoints, ignore_errors=True)


def digest(texts):
    """The SHA-256 of some texts, a line each."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _new(tokenizer, causal, shape, seed):
    sizes = {name: shape[name] for name in ("width", "layers", "heads", "mlp", "context")}
    return network.new(causal=causal, vocab=len(tokenizer), eos=tokenizer.eos_token_id, seed=seed, **sizes)


def from_hub(output, *, repo, revision, files, **where):
    """Any Hugging Face causal LM as the autoregressive model: its files at a pinned revision, each hash checked."""
    folder = {hub.fetch(repo, name, revision, digest, **where).parent for name, digest in files.items()}.pop()
    net, tokenizer = network.load(folder, device="cpu")
    if tokenizer is None:
        raise ModelError(f"{repo}: tokenizer.json is not among its files")
    network.save(net, tokenizer, output)


def from_lit_gpt(
    output, *, causal, weights, tokenizer, n_head, eos_token="</s>", norm_eps=1e-5, block_size=2048, **where
):
    output, *, causal, weights, tokenizer, n_head, eos_token="</s>", norm_eps=1e-5, block_size=2048, **where
):
    """An SMDM checkpoint and a tokenizer.json, each a {path} here or a {repo, revision, file, sha256} on the hub."""
    reader = tokens.read_tokenizer(hub.located(tokenizer, where), eos_token)
    config = {"n_head": n_head, "norm_eps": norm_eps, "block_size": block_size, "eos_token_id": reader.eos_token_id}
    net = smdm.load(hub.located(weights, where), config, causal=causal)
    if network.vocab(net) != len(reader):
        raise ModelError(
            f"{hub.named(tokenizer)} has {len(reader)} tokens, but {hub.named(weights)} {network.vocab(net)}; "
            "a checkpoint needs the tokenizer it was trained with"
        )
    network.save(net, reader, output)
