"""Trace one prompt in one call, as in a notebook: no files, no splits, no study."""

from collections.abc import Mapping

import torch
from transformers import PreTrainedTokenizerBase

from ..common.errors import UserError
from ..data.facts import Row
from ..recall import evaluation
from ..recall.sampling import Sampling
from .files import FactTrace
from .study import Tracing, trace_split

NOISE = {"gaussian": ["state", "mlp", "attn"]}  # the corruption that needs neither another fact nor a mask


def trace_prompt(
    net: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    *,
    subject: str,
    answer: str,
    sampling: Sampling | Mapping,
    steps: int | None = 16,
    **settings,
) -> FactTrace:
    """Trace the answer to a prompt; `figures.trace_map` draws the result.

    `subject` is the text in the prompt to corrupt, `answer` the expected completion. A diffusion network answers in
    `steps` denoising steps. `settings` are those of `Tracing`; the default corruption is Gaussian noise on the subject.
    """
    if prompt.count(subject) != 1:
        raise UserError(f"{subject!r} is {prompt.count(subject)} times in {prompt!r}; the subject must be there once")
    start, completion = prompt.index(subject), f" {answer.strip()}"
    row = Row(subject, 0, prompt, completion, (start, start + len(subject)), (1, len(completion)))
    sampling = Sampling(**sampling) if isinstance(sampling, dict) else sampling
    completions = evaluation.complete_split(net, tokenizer, [row], sampling, split="the prompt", steps=steps)
    if not completions[0]["correct"]:
        generation = completions[0]["generation"]
        raise UserError(f"the network answers {generation!r}, not {answer!r}; only answers it gives can be traced")
    tracing = Tracing(**{"corruptions": NOISE, **settings})
    *_, traces, outcomes = trace_split(net, tokenizer, [row], completions, tracing)
    if not traces:
        raise UserError(f"{prompt!r} is not traced: {'; '.join(outcomes.outcome.unique())}")
    return traces[0]
