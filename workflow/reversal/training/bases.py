"""Models to start from that are neither a local folder nor pretrained here: from the hub, or with random weights."""

from ..data import facts
from ..models import hub, network, tokens
from ..models.folders import ModelError


def from_hub(output, *, repo, revision, files, **where):
    """Save any causal LM of the Hugging Face hub as an autoregressive base: a pinned revision, each hash checked."""
    net, tokenizer = network.load(hub.fetch_folder(repo, revision, files, **where), device="cpu", dtype="auto")
    if tokenizer is None:
        raise ModelError(f"{repo}: tokenizer.json is not among its files")
    network.save(net, tokenizer, output)


def from_scratch(rows, output, *, causal, shape, seed):
    """Save a network with random weights and a tokenizer trained on the study's own training rows (a file)."""
    texts = [row.text for row in facts.read(rows)]
    tokenizer = tokens.train_tokenizer(texts, shape["vocabulary"])
    network.save(new_network(tokenizer, causal=causal, shape=shape, seed=seed), tokenizer, output)


def new_network(tokenizer, *, causal, shape, seed, **objective):
    """A network with random weights for a tokenizer; `shape` as `network` in the configuration."""
    sizes = {name: shape[name] for name in ("width", "layers", "heads", "mlp", "context")}
    if shape.get("positions", "rotary") != "rotary":  # the default is left out of the network's configuration
        objective["positions"] = shape["positions"]
    return network.new(causal=causal, vocab=len(tokenizer), eos=tokenizer.eos_token_id, seed=seed, **sizes, **objective)
