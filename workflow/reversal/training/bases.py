"""Where a model starts that is neither a folder nor trained here: the Hugging Face hub, or random weights."""

from ..data import facts
from ..models import hub, network, tokens
from ..models.folders import ModelError


def from_hub(output, *, repo, revision, files, **where):
    """Any Hugging Face causal LM as the autoregressive model: its files at a pinned revision, each hash checked."""
    net, tokenizer = network.load(hub.folder(repo, revision, files, **where), device="cpu", dtype="auto")
    if tokenizer is None:
        raise ModelError(f"{repo}: tokenizer.json is not among its files")
    network.save(net, tokenizer, output)


def scratch(rows, output, *, causal, shape, seed):
    """A network with random weights and a tokenizer trained on the study's own training rows."""
    texts = [row.text for row in facts.read(rows)]
    tokenizer = tokens.train_tokenizer(texts, shape["vocabulary"])
    network.save(new(tokenizer, causal=causal, shape=shape, seed=seed), tokenizer, output)


def new(tokenizer, *, causal, shape, seed, **objective):
    """A network with random weights for a tokenizer; `shape` as `network` in the configuration."""
    sizes = {name: shape[name] for name in ("width", "layers", "heads", "mlp", "context")}
    return network.new(causal=causal, vocab=len(tokenizer), eos=tokenizer.eos_token_id, seed=seed, **sizes, **objective)
