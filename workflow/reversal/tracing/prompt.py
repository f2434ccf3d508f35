"""One question traced in one call, as a notebook asks it: no files, no splits, no study."""

from ..common.errors import UserError
from ..data.facts import Row
from ..recall import evaluation
from ..recall.sampling import Sampling
from .study import Tracing, trace_split

NOISE = {"gaussian": ["state", "mlp", "attn"]}  # the corruption that needs no other fact and no mask


def trace_prompt(net, tokenizer, prompt, *, subject, answer, sampling, steps=16, **settings):
    """The `FactTrace` of a prompt that a network answers, which `figures.trace_map` draws.

    `subject` is the text in the prompt to hide, `answer` the one that is expected after it, and traced while it
    appears. A diffusion network answers in so many `steps`. `settings` are those of `Tracing`; without `corruptions`
    among them the subject gets Gaussian noise.
    """
    if prompt.count(subject) != 1:
        raise UserError(f"{subject!r} is {prompt.count(subject)} times in {prompt!r}; the subject is there once")
    start, completion = prompt.index(subject), f" {answer.strip()}"
    row = Row(subject, 0, prompt, completion, (start, start + len(subject)), (1, len(completion)))
    sampling = Sampling(**sampling) if isinstance(sampling, dict) else sampling
    [said] = evaluation.complete_split(net, tokenizer, [row], sampling, split="the prompt", steps=steps)
    if not said["correct"]:
        raise UserError(
            f"the network goes on with {said['generation']!r}, not with {answer!r}; only what it says is traced"
        )
    *_, traces, outcomes = trace_split(net, tokenizer, [row], [said], Tracing(**{"corruptions": NOISE, **settings}))
    if not traces:
        raise UserError(f"{prompt!r} is not traced: {'; '.join(outcomes.outcome.unique())}")
    return traces[0]
