"""Asking a network of either family: completions, likelihoods of right and wrong answers, what comes first to mind."""

import math

import pandas as pd

from ..common.errors import UserError
from ..models import network, tokens
from . import autoregressive, masked, noised

# What a likelihood is: a bound on that of the process, or of its generation in one step; or the likelihood itself.
KINDS = {"mask": "bound", "uniform": "bound in one step", "gaussian": "bound in one step", None: "exact"}


def correct(reference, generation):
    """Whether the generation contains the reference, both lower-cased and stripped."""
    return reference.strip().lower() in generation.strip().lower()


def complete_split(net, tokenizer, rows, sampling, *, split, steps=None):
    """Answer every prompt of `rows` as a `Sampling` says: a list of completions, one dict a row.

    `steps`, a number or several to be taken one after the other, is for diffusion networks; an autoregressive one
    answers greedily, token by token, and takes no more from `sampling` than the canvas and the precision. A completion
    holds the trajectory: its `ids`, the prompt's included; of each token after it where, what, at which step, and how
    sure (`revealed`, in that order); and, of tokens that were `withdrawn`, position, id, and the steps that revealed
    and masked it. `corrected` counts those of the answer: withdrawn, wrong ones that became right, and the reverse.
    """
    examples = [tokens.encode(tokenizer, row) for row in rows]
    for i, example in enumerate(examples):
        if len(example.ids) > sampling.canvas:
            raise UserError(
                f"{split}: row {i + 1} and its answer have {len(example.ids)} tokens; "
                f"the canvas has {sampling.canvas}: widen sampling.canvas"
            )
    prompts = [example.ids[: example.prompt] for example in examples]
    if network.is_diffusion(net):
        numbers = [steps] if isinstance(steps, int) else steps
        done = _sampler(net).denoise_each(net, prompts, sampling, numbers)
        answers = [(number, answer) for number in numbers for answer in _denoised(done[number], prompts)]
    else:
        numbers = [None]
        answers = [(None, answer) for answer in _completed(net, prompts, sampling, tokenizer.eos_token_id)]
    token_text = {}
    completions = []
    for (row, example, prompt), (number, (ids, revealed, withdrawn)) in zip(
        list(zip(rows, examples, prompts, strict=True)) * len(numbers), answers, strict=True
    ):
        generation = decode(tokenizer, ids)
        for _, token, _, _ in revealed:
            token_text.setdefault(token, tokenizer.decode([token]))
        completions.append(
            {
                "fact": row.fact,
                "template": row.template,
                "split": split,
                "steps": number,
                "prompt": row.prompt,
                "reference": row.completion,
                "generation": generation,
                "correct": correct(row.completion, generation),
                "revealed": [[at, token_text[token], step, round(sure, 6)] for at, token, step, sure in revealed],
                "prompt_tokens": len(prompt),
                "ids": [*prompt, *ids],
                "withdrawn": withdrawn,
                "corrected": _corrected(example, [*prompt, *ids], withdrawn),
            }
        )
    return completions


def _sampler(net):
    """The module that fills a diffusion network's canvases."""
    return masked if network.noise(net) == "mask" else noised


def _corrected(example, ids, withdrawn):
    """How many tokens of an answer were withdrawn, how many of these turned from wrong to right, and back."""
    taken = [(at, token) for at, token, _, _ in withdrawn if at in range(*example.answer)]
    right = [(token == example.ids[at], ids[at] == example.ids[at]) for at, token in taken]
    return [len(taken), right.count((False, True)), right.count((True, False))]


def _denoised(done, prompts):
    """For each row the ids after its prompt, (position, id, step, confidence) in the order of their revelation, and
    what was withdrawn."""
    withdrawn = [[] for _ in prompts]
    for row, *taken in done.withdrawn.tolist():
        withdrawn[row].append(taken)
    canvases, steps, confidences = done.canvas.tolist(), done.step.tolist(), done.confidence.tolist()
    rows = zip(prompts, canvases, steps, confidences, withdrawn, strict=True)
    for prompt, canvas, step, confidence, taken in rows:
        order = sorted((s, position) for position, s in enumerate(step) if s >= 0)
        yield canvas[len(prompt) :], [(at, canvas[at], s, confidence[at]) for s, at in order], taken


def _completed(net, prompts, sampling, eos):
    """The same of an autoregressive network, which reveals one token a step."""
    if not prompts:
        return
    room = [sampling.canvas - len(prompt) for prompt in prompts]
    done = autoregressive.complete(net, prompts, new_tokens=max(room), eos=eos, precision=sampling.precision)
    for prompt, free, ids, logs in zip(prompts, room, done.tokens, done.log_probabilities, strict=True):
        ids = ids[:free]
        yield ids, [(len(prompt) + i, token, i, math.exp(logs[i])) for i, token in enumerate(ids)], []


def decode(tokenizer, ids):
    """The text of `ids` up to the first end token."""
    end = ids.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in ids else len(ids)
    return tokenizer.decode(ids[:end], skip_special_tokens=True)


def compare_likelihoods(
    net, tokenizer, right, wrong, *, split, canvas, samples=None, precision="float32", generator=None
):
    """Log-likelihood of each row's completion and of the wrong one to the same prompt: one dict a row.

    Exact for an autoregressive network (errors 0); for a diffusion network the bound of `masked.log_likelihood`, or of
    `noised.log_likelihood`, with `samples` draws, on canvases filled with end tokens.
    """
    for i, (row, other) in enumerate(zip(right, wrong, strict=True)):
        if row.prompt != other.prompt:
            raise UserError(f"{split}: row {i + 1} has another prompt than row {i + 1} of the randomized split")
    examples = [tokens.encode(tokenizer, row) for row in [*right, *wrong]]
    pairs = (
        [example.ids[: example.prompt] for example in examples],
        [example.ids[example.prompt :] for example in examples],
    )
    if network.is_diffusion(net):
        end = {"canvas": canvas, "eos": tokenizer.eos_token_id}
        value, error = _sampler(net).log_likelihood(
            net, *pairs, samples=samples, generator=generator, precision=precision, **end
        )
    else:
        value = autoregressive.log_likelihood(net, *pairs, precision=precision)
        error = value * 0
    return [
        {
            "fact": row.fact,
            "template": row.template,
            "split": split,
            "prompt": row.prompt,
            "kind": KINDS[network.noise(net) if network.is_diffusion(net) else None],
            "right": value[i].item(),
            "wrong": value[len(right) + i].item(),
            "right_error": error[i].item(),
            "wrong_error": error[len(right) + i].item(),
        }
        for i, row in enumerate(right)
    ]


def first_tokens(net, tokenizer, prompts, *, top, canvas=None, precision="float32"):
    """What comes right after each of `prompts` (texts): its `top` most likely tokens, and the entropy in nats.

    A diffusion network sees a masked canvas of `canvas` tokens after the prompt, or one mask.
    """
    if network.noise(net) != "mask":
        raise UserError(
            f"first tokens are told of masked and autoregressive networks; this one's are {network.noise(net)}"
        )
    ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    if network.is_diffusion(net):
        logs = masked.first_token(net, ids, canvas=canvas, precision=precision)
    else:
        logs = autoregressive.first_token(net, ids, precision=precision)
    logs = logs.double()
    entropy = -(logs.exp() * logs).sum(1)
    best = logs.sort(dim=1, descending=True, stable=True)
    return pd.DataFrame(
        {
            "prompt": prompt,
            "rank": rank + 1,
            "token": tokenizer.decode([best.indices[i, rank].item()]),
            "probability": best.values[i, rank].exp().item(),
            "entropy": entropy[i].item(),
        }
        for i, prompt in enumerate(prompts)
        for rank in range(top)
    )
