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
from .vocabulary import NO_MASK, NO_PARTNER, TOO_SHORT, TRACED

ADVICE = {
    NO_MASK: "the network has no mask token",
    NO_PARTNER: "give swap=, another subject of as many tokens",
    TOO_SHORT: "the answer has one token; set min_answer_tokens=1",
}
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
    swap: str | None = None,
    **settings,
) -> FactTrace:
    """Trace the answer to a prompt; `figures.trace_map` draws the result.

    `subject` is the text in the prompt to corrupt, `answer` the expected completion. A diffusion network answers in
    `steps` denoising steps. `settings` are those of `Tracing`; the default corruption is Gaussian noise on the subject.
    `swap` is another subject of as many tokens, for the corruption of that name.
    """
    if prompt.count(subject) != 1:
        raise UserError(f"{subject!r} is {prompt.count(subject)} times in {prompt!r}; the subject must be there once")
    start, completion = prompt.index(subject), f" {answer.strip()}"
    row = Row(subject, 0, prompt, completion, (start, start + len(subject)), (1, len(completion)))
    sampling = Sampling(**sampling) if isinstance(sampling, dict) else sampling
    completions = evaluation.complete_split(net, tokenizer, [row], sampling, split="the prompt", steps=steps)
    rows = [row]
    if swap:  # a question that is not traced, whose subject takes the place of the other
        rows.append(Row(swap, 0, prompt.replace(subject, swap), completion, (start, start + len(swap)), row.answer))
        completions.append({**completions[0], "correct": False})
    if not completions[0]["correct"]:
        generation = completions[0]["generation"]
        raise UserError(f"the network answers {generation!r}, not {answer!r}; only answers it gives can be traced")
    tracing = Tracing(**{"corruptions": NOISE, **settings})
    *_, traces, outcomes = trace_split(net, tokenizer, rows, completions, tracing)
    asked = outcomes[(outcomes.fact == subject) & outcomes.corruption.isin(list(tracing.corruptions))]
    missing = asked[asked.outcome != TRACED]
    if len(missing):
        reasons = "; ".join(f"{row.corruption}: {ADVICE.get(row.outcome, row.outcome)}" for row in missing.itertuples())
        raise UserError(f"{prompt!r} is not traced ({reasons})")
    return traces[0]
