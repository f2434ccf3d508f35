"""Tiny networks of both families, trained in seconds on eight people, for the tests of storage."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from reversal.data.facts import Row
from reversal.models import tokens
from reversal.models.network import new
from reversal.storage import scoring

NAMES = ("Ada", "Bo", "Cleo", "Dov", "Edda", "Finn", "Gwen", "Hugo")
DESCRIPTIONS = (
    "a red baker",
    "a tall singer",
    "a kind pilot",
    "a late farmer",
    "a shy judge",
    "a loud miner",
    "a blue tailor",
    "a calm sailor",
)
DESCRIPTION_TEMPLATES = ("{} is", "We know {} as", "They say {} was")
NAME_TEMPLATES = ("The name of {} is", "People call {} by the name of", "Here comes {} called")
CANVAS = 14


def fill_template(template, number, fact, subject, answer):
    start = template.index("{")
    span = (start, start + len(subject))
    return Row(f"p-{fact}", number, template.format(subject), f" {answer}.", span, (1, 1 + len(answer)))


def rows(answer_type="description"):
    """Each person with each template, with the description or the name as the answer."""
    people = list(enumerate(zip(NAMES, DESCRIPTIONS, strict=True)))
    if answer_type == "description":
        return [fill_template(t, i, n, *pair) for n, pair in people for i, t in enumerate(DESCRIPTION_TEMPLATES)]
    return [fill_template(t, i, n, *pair[::-1]) for n, pair in people for i, t in enumerate(NAME_TEMPLATES)]


def all_rows():
    """The rows of both directions."""
    return rows("description") + rows("name")


def tokenizer():
    return tokens.train_tokenizer([row.text for row in all_rows()] * 3, 420)


def network(words, *, causal, steps=0):
    """A network of three layers, trained for `steps` steps to answer all questions.

    Its first block does not attend, and its embeddings stay small, so that later blocks get what they know about a
    subject from the first MLP, and a value put there can make the network give any answer.
    """
    net = new(causal=causal, vocab=len(words), width=32, layers=3, heads=2, mlp=48, eos=0, seed=0)
    frozen = {"model.embed_tokens.weight", "model.layers.0.self_attn.o_proj.weight"}
    trained = [parameter for name, parameter in net.named_parameters() if name not in frozen]
    with torch.no_grad():
        net.model.layers[0].self_attn.o_proj.weight.zero_()
        for matrix in (parameter for parameter in trained if parameter.dim() == 2):
            matrix *= 4  # from the usual small weights, training would take many more steps
    optimizer = torch.optim.Adam(trained, lr=1e-2)
    lm = scoring.LanguageModel(net, words, CANVAS)
    questions = [scoring.encode_question(lm, row) for row in all_rows()]
    for _ in range(steps):
        for batch in scoring.collate(net, questions):
            torch.nn.functional.nll_loss(scoring.log_probabilities(net, batch), batch.token).backward()
        optimizer.step()
        net.zero_grad()
    return net


def language_model(*, causal=False, steps=0):
    """A `network` with its tokenizer."""
    words = tokenizer()
    return scoring.LanguageModel(network(words, causal=causal, steps=steps), words, CANVAS)


def has_no_hooks(net):
    """Whether no module of a network has a forward hook or a replaced `forward`."""
    return not any(module._forward_hooks or "forward" in vars(module) for module in net.modules())


def gpt2_network(words):
    """A random network of another architecture than Llama."""
    config = GPT2Config(
        vocab_size=len(words), n_embd=32, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    return GPT2LMHeadModel(config).eval()
