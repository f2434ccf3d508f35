"""Tiny networks of both families that were trained, in seconds, to know eight people; for tests."""

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
ASKS_DESCRIPTION = ("{} is", "We know {} as", "They say {} was")
ASKS_NAME = ("The name of {} is", "People call {} by the name of", "Here comes {} called")
CANVAS = 14


def fill(template, number, fact, subject, answer):
    start = template.index("{")
    span = (start, start + len(subject))
    return Row(f"p-{fact}", number, template.format(subject), f" {answer}.", span, (1, 1 + len(answer)))


def rows(answer_type="description"):
    """Each person with each template: of the description, or of the name."""
    people = list(enumerate(zip(NAMES, DESCRIPTIONS, strict=True)))
    if answer_type == "description":
        return [fill(t, i, n, name, said) for n, (name, said) in people for i, t in enumerate(ASKS_DESCRIPTION)]
    return [fill(t, i, n, said, name) for n, (name, said) in people for i, t in enumerate(ASKS_NAME)]


def everything():
    return rows("description") + rows("name")


def tokenizer():
    return tokens.train_tokenizer([row.text for row in everything()] * 3, 420)


def network(words, *, causal, steps=0):
    """A network of three layers that was taught to answer all questions, in `steps` steps.

    Its first block does not attend, and embeddings stay small: what later blocks know of a subject comes from the first
    MLP, so that a value put there can make them say anything.
    """
    net = new(causal=causal, vocab=len(words), width=32, layers=3, heads=2, mlp=48, eos=0, seed=0)
    fixed = {"model.embed_tokens.weight", "model.layers.0.self_attn.o_proj.weight"}
    learned = [parameter for name, parameter in net.named_parameters() if name not in fixed]
    with torch.no_grad():
        net.model.layers[0].self_attn.o_proj.weight.zero_()
        for matrix in (parameter for parameter in learned if parameter.dim() == 2):
            matrix *= 4  # from the usual small weights it would take long to learn anything
    optimizer = torch.optim.Adam(learned, lr=1e-2)
    lm = scoring.LanguageModel(net, words, CANVAS)
    asked = [scoring.question(lm, row) for row in everything()]
    for _ in range(steps):
        for batch in scoring.collate(net, asked):
            torch.nn.functional.nll_loss(scoring.log_probabilities(net, batch), batch.token).backward()
        optimizer.step()
        net.zero_grad()
    return net


def untouched(net):
    """Whether no hook is left on a network, and no block's work is replaced."""
    return not any(module._forward_hooks or "forward" in vars(module) for module in net.modules())


def another_make(words):
    """A random network that is no Llama."""
    shape = GPT2Config(
        vocab_size=len(words), n_embd=32, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    return GPT2LMHeadModel(shape).eval()
