"""Evaluation of a network of either family: completions, likelihoods of right and wrong answers, first tokens.

Both families return the same records, so that later stages do not depend on how a network generates.
"""

import math

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..common.errors import UserError
from ..models import network, tokens
from . import autoregressive, masked, noised
from .sampling import Sampling

# {noise, or None for autoregressive networks: what its likelihood is}.
KINDS = {"mask": "bound", "uniform": "bound in one step", "gaussian": "bound in one step", None: "exact"}


def is_correct(reference, generation):
    """Case-insensitive substring match of the reference completion."""
    return reference.strip().lower() in generation.strip().lower()


def answer(
    net: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    *,
    canvas: int,
    steps: int = 16,
    **sampling,
) -> str:
    """The text with which a network of either family completes `prompt`.

    A diffusion network fills a canvas of `canvas` tokens, prompt included, in `steps` denoising steps; `sampling` has
    the other fields of `Sampling`. An autoregressive network decodes greedily, up to `canvas` tokens.
    """
    ids, settings = tokenizer(prompt)["input_ids"], Sampling(canvas=canvas, **sampling)
    if len(ids) >= canvas:
        raise UserError(f"the prompt has {len(ids)} tokens, but canvas is {canvas}; set it to more")
    if network.is_diffusion(net):
        denoised = _diffusion_module(net).denoise_each(net, [ids], settings, [steps])[steps]
        [(generated, *_)] = _list_trajectories(denoised, [ids])
    else:
        [(generated, *_)] = _complete_greedily(net, [ids], settings, tokenizer.eos_token_id)
    return decode(tokenizer, generated).strip()


def complete_split(net, tokenizer, rows, sampling, *, split, steps=None):
    """Complete every prompt of `rows` with the settings of a `Sampling`: a list of dicts, one per row and `steps`.

    `steps` is a number of denoising steps, or a list of numbers. An autoregressive network completes greedily, token by
    token, and uses only the canvas and the precision of `sampling`. A completion holds its trajectory:

    ids           of prompt and completion
    revealed      of each token after the prompt: position, text, step, confidence; in the order of the steps
    remasked      of each token that was masked again: position, id, the step that revealed it, the step that masked it
    """
    examples = [tokens.encode(tokenizer, row) for row in rows]
    for i, example in enumerate(examples):
        if len(example.ids) > sampling.canvas:
            raise UserError(
                f"{split}: row {i + 1} has {len(example.ids)} tokens with its answer, but sampling.canvas is "
                f"{sampling.canvas}; set it to at least {len(example.ids)}"
            )
    prompts = [example.ids[: example.prompt] for example in examples]
    if network.is_diffusion(net):
        numbers = [steps] if isinstance(steps, int) else steps
        denoised = _diffusion_module(net).denoise_each(net, prompts, sampling, numbers)
        generated = [(number, row) for number in numbers for row in _list_trajectories(denoised[number], prompts)]
    else:
        numbers = [None]
        generated = [(None, row) for row in _complete_greedily(net, prompts, sampling, tokenizer.eos_token_id)]
    token_text = {}
    completions = []
    for (row, prompt), (number, (ids, revealed, remasked)) in zip(
        list(zip(rows, prompts, strict=True)) * len(numbers), generated, strict=True
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
                "correct": is_correct(row.completion, generation),
                "revealed": [
                    [position, token_text[token], step, round(confidence, 6)]
                    for position, token, step, confidence in revealed
                ],
                "prompt_tokens": len(prompt),
                "ids": [*prompt, *ids],
                "remasked": remasked,
            }
        )
    return completions


def _diffusion_module(net):
    """The module for the noise of a diffusion network."""
    return masked if network.noise(net) == "mask" else noised


def _list_trajectories(denoised, prompts):
    """Yield (ids after the prompt, [(position, id, step, confidence)] in order of steps, remasked tokens) per row."""
    remasked = [[] for _ in prompts]
    for row, *token in denoised.remasked.tolist():
        remasked[row].append(token)
    canvases, steps, confidences = denoised.canvas.tolist(), denoised.step.tolist(), denoised.confidence.tolist()
    rows = zip(prompts, canvases, steps, confidences, remasked, strict=True)
    for prompt, canvas, step, confidence, changed in rows:
        order = sorted((s, position) for position, s in enumerate(step) if s >= 0)
        revealed = [(position, canvas[position], s, confidence[position]) for s, position in order]
        yield canvas[len(prompt) :], revealed, changed


def _complete_greedily(net, prompts, sampling, eos):
    """Yield the same of an autoregressive network, which reveals one token per step."""
    if not prompts:
        return
    rooms = [sampling.canvas - len(prompt) for prompt in prompts]
    done = autoregressive.complete(net, prompts, new_tokens=max(rooms), eos=eos, precision=sampling.precision)
    for prompt, room, ids, log_probs in zip(prompts, rooms, done.tokens, done.log_probabilities, strict=True):
        ids = ids[:room]
        yield ids, [(len(prompt) + i, token, i, math.exp(log_probs[i])) for i, token in enumerate(ids)], []


def decode(tokenizer, ids):
    """The text of `ids` up to the first end token."""
    end = ids.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in ids else len(ids)
    return tokenizer.decode(ids[:end], skip_special_tokens=True)


def compare_likelihoods(
    net, tokenizer, right, wrong, *, split, canvas, samples=None, precision="float32", generator=None
):
    """Log-likelihoods of the `right` rows' completions and of the `wrong` ones after the same prompts: a dict per row.

    They are exact for an autoregressive network. For a diffusion network they are bounds from `samples` draws, by
    `masked.log_likelihood` or `noised.log_likelihood`, on canvases filled with end tokens.
    """
    for i, (row, other) in enumerate(zip(right, wrong, strict=True)):
        if row.prompt != other.prompt:
            raise UserError(f"{split}: row {i + 1} has a different prompt than row {i + 1} of the randomized split")
    examples = [tokens.encode(tokenizer, row) for row in [*right, *wrong]]
    pairs = (
        [example.ids[: example.prompt] for example in examples],
        [example.ids[example.prompt :] for example in examples],
    )
    if network.is_diffusion(net):
        options = {"samples": samples, "canvas": canvas, "eos": tokenizer.eos_token_id, "generator": generator}
        value = _diffusion_module(net).log_likelihood(net, *pairs, precision=precision, **options)
    else:
        value = autoregressive.log_likelihood(net, *pairs, precision=precision)
    return [
        {
            "fact": row.fact,
            "template": row.template,
            "split": split,
            "prompt": row.prompt,
            "kind": KINDS[network.noise(net) if network.is_diffusion(net) else None],
            "right": value[i].item(),
            "wrong": value[len(right) + i].item(),
        }
        for i, row in enumerate(right)
    ]
