"""When the subject is needed, which only a model that writes its answer in several steps can be asked.

Three readings of the questions that are traced. What the answer tokens still to come *rest* on: the subject, what is
already revealed of the answer, or both, hidden in turn. What is *recalled* of the finished answer where the subject, or
one module's output at its tokens, is hidden from a step on, or up to it. And what a state that is put back at t1 alone
leaves on the canvas, *carried* to later steps.

A subject is hidden by another person's of as many tokens, as in `swap`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd
import torch

from ..common import batches
from ..common.errors import UserError
from ..models import hooks, network
from ..recall import autoregressive, evaluation, logits, masked
from . import engine
from .effects import at_first
from .study import evenly
from .vocabulary import ROLES, WHOLE, WINDOWED, leading

COLUMNS = ["fact", "reading", "hidden", "kind", "layer", "stage", "step", "revealed", "remaining", "value"]


@dataclass(frozen=True)
class Timing:
    """What is asked about time: the names and meanings of `tracing.time` in the configuration."""

    starts: int = 9  # steps from which, and up to which, the subject is hidden: evenly spread, both ends included
    module_starts: int = 3  # the same for single modules
    module_facts: int | None = None  # of which the modules are hidden; None: all that are traced

    def __post_init__(self):
        for name in ("starts", "module_starts"):
            if getattr(self, name) < 2:
                raise UserError(f"{name} is {getattr(self, name)}; it is a whole number from 2 up")


class StepView(NamedTuple):
    """What the network sees at one step: the subject or another's; and a site, (kind, layer), that sees the other."""

    hidden: bool
    site: tuple | None = None


class SubjectCorruption(NamedTuple):
    """A subject's place, the tokens that hide it, and how it is seen at each step."""

    places: range
    tokens: list
    at: Callable  # of a step, to a `StepView`


def looking(net, hidings):
    """A `look` for `masked.denoise_each`: canvases as the `hidings`, one a prompt, let the network see them."""

    def look(canvas, prompts, steps):
        glances = [hidings[prompt].at(step) for prompt, step in zip(prompts, steps, strict=True)]
        hidden = canvas.clone()
        for row, prompt in zip(hidden, prompts, strict=True):
            row[list(hidings[prompt].places)] = torch.tensor(hidings[prompt].tokens, device=row.device)
        swapped = torch.tensor([glance.hidden for glance in glances], device=canvas.device)[:, None]
        seen, other = torch.where(swapped, hidden, canvas), torch.where(swapped, canvas, hidden)
        mixed = [i for i, glance in enumerate(glances) if glance.site]
        whole = [i for i, glance in enumerate(glances) if not glance.site]
        # Many ways to hide a subject agree for most of the steps: what is the same is run once.
        plain, same = torch.cat([seen[whole], other[mixed]]).unique(dim=0, return_inverse=True)
        sites = {}  # {(kind, layer): [(row, place, row that sees the other)]}
        for row, (i, beside) in enumerate(zip(mixed, same[len(whole) :].tolist(), strict=True), len(plain)):
            spots = [(row, place, beside) for place in hidings[prompts[i]].places]
            sites.setdefault(glances[i].site, []).extend(spots)
        put_in = [(engine.site(net, *site), _copying(spots, canvas.device)) for site, spots in sites.items()]
        with hooks.attached(put_in):
            states = network.predictions(net, torch.cat([plain, seen[mixed]]))
        rows = torch.empty(len(canvas), dtype=torch.long, device=canvas.device)
        rows[whole] = same[: len(whole)]
        rows[mixed] = torch.arange(len(plain), len(states), device=rows.device)
        return states[rows]

    return look


def _copying(spots, device):
    """A hook that gives some rows of what a module puts out the values of other rows, at some places."""
    row, place, source = torch.tensor(spots, device=device).T

    def hook(module, given, output):
        states = output[0] if isinstance(output, tuple) else output
        changed = states.index_put((row, place), states[source, place])
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    return hook


def since(start, site=None):
    """Hidden from step `start` on: the subject, or a site at its tokens."""
    return lambda step: _glance(step >= start, site)


def until(end, site=None):
    """Hidden up to step `end`."""
    return lambda step: _glance(step < end, site)


def back_at(moment, site):
    """The subject always hidden, and a site as if it were not, at the step `moment` alone."""
    return lambda step: StepView(True, site if step == moment else None)


def _glance(hiding, site):
    return StepView(hiding and site is None, site if hiding else None)


WAYS = {"from": since, "until": until}


def when_needed(net, tokenizer, found, traces, sampling, steps, timing):
    """All readings of the questions `found` (a list of `study.Answered`): a table with `COLUMNS`, a row a number.

    What is put back at t1 alone is what returned most there in their `traces`. `sampling` and `steps` are those of the
    completions; an autoregressive network has no steps: its tokens are.
    """
    found = [one for one in found if one.partner is not None]
    parts = [rests(net, found)]
    if found and network.is_diffusion(net):
        parts += [recalled(net, tokenizer, found, sampling, steps, timing)]
        parts += [carried(net, tokenizer, found, peaks(traces), sampling, steps)]
    elif found:
        parts += [completed(net, tokenizer, found, sampling.canvas, timing)]
    return pd.concat([part for part in parts if len(part)] or parts[:1]).reindex(columns=COLUMNS)


def rests(net, found):
    """Log-probabilities of the answer tokens still to come with nothing hidden, the subject, what is revealed, or both.

    At each step that reveals a token of the answer. `kind` is what stands in a revealed token's place: a "mask", where
    the network has one, or the token of the partner's answer ("swap"), where that has as many.
    """
    rows, asked = [], []
    for one in found:
        for step in one.moments:
            canvas, places = one.entering(net, step)
            there, pairs = [place for place in range(*one.answer) if place not in places], one.asked(net, places)
            fillings = {"mask": [network.mask_id(net)] * len(there)} if network.is_diffusion(net) else {}
            if one.rival:
                fillings["swap"] = [one.rival[place - one.answer[0]] for place in there]
            swapped = put(canvas, range(*one.subject), one.partner.subject)
            about = {"fact": one.row.fact, "reading": "rests", "step": step, "stage": one.stage(step)}
            about |= {"revealed": len(there), "remaining": len(pairs)}
            runs = [("neither", None, canvas), ("subject", None, swapped)]
            for kind, tokens in fillings.items() if there else ():
                runs += [("revealed", kind, put(canvas, there, tokens)), ("both", kind, put(swapped, there, tokens))]
            for hidden, kind, ids in runs:
                rows.append(about | {"hidden": hidden, "kind": kind})
                asked.append((ids, pairs))
    return pd.DataFrame(rows, columns=COLUMNS).assign(value=log_probabilities(net, asked))


def put(ids, places, tokens):
    """`ids` with `tokens` in some `places`."""
    changed = list(ids)
    for place, token in zip(places, tokens, strict=True):
        changed[place] = token
    return changed


@torch.no_grad()
def log_probabilities(net, asked):
    """The joint log-probability of the tokens in each of `asked`: ids and the (position, token) pairs read there."""
    device = net.get_input_embeddings().weight.device

    def score(indices):
        ids, _ = batches.pad([asked[i][0] for i in indices], 0)  # of one length, or seen by no earlier position
        states = network.hidden(net, ids.to(device))
        read = [(row, *pair) for row, i in enumerate(indices) for pair in asked[i][1]]
        row, place, token = torch.tensor(read, device=device).T
        logs = logits.token_logs(net, states[row, place], token)
        return torch.zeros(len(indices), dtype=torch.float64).index_add_(0, row.cpu(), logs.double().cpu()).tolist()

    return batches.run(score, [len(ids) for ids, _ in asked], device)


def _generate(net, cases, sampling, steps):
    """The canvases of `cases`, (question, how it is seen at each step): a `sampling.Denoised`."""
    hidings = [SubjectCorruption(range(*one.subject), one.partner.subject, at) for one, at in cases]
    prompts = [one.ids[: one.prompt] for one, _ in cases]
    return masked.denoise_each(net, prompts, sampling, [steps], look=looking(net, hidings))[steps]


def _right(tokenizer, one, ids):
    return float(evaluation.correct(one.row.completion, evaluation.decode(tokenizer, ids[one.prompt :])))


def recalled(net, tokenizer, found, sampling, steps, timing):
    """Whether the finished answer is right, 1 or 0, with the subject or a module's output there hidden for some steps.

    `step` is the first at which it is hidden ("from") or is not ("until").
    """
    depth = net.config.num_hidden_layers
    modules = [(kind, layer) for kind in WINDOWED for layer in range(depth)]
    cases = [(one, way, None, step) for one in found for way in WAYS for step in evenly(0, steps, timing.starts)]
    cases += [
        (one, way, site, step)
        for one in found[: timing.module_facts]
        for site in modules
        for way in WAYS
        for step in evenly(0, steps, timing.module_starts)
        if step != {"from": steps, "until": 0}[way]  # where nothing is hidden: as answered
    ]
    done = _generate(net, [(one, WAYS[way](step, site)) for one, way, site, step in cases], sampling, steps)
    rows = []
    for (one, way, site, step), ids in zip(cases, done.canvas.tolist(), strict=True):
        kind, layer = site or ("subject", None)
        about = {"fact": one.row.fact, "reading": "recalled", "hidden": way, "kind": kind, "layer": layer, "step": step}
        rows.append(about | {"value": _right(tokenizer, one, ids)})
    return pd.DataFrame(rows)


def completed(net, tokenizer, found, canvas, timing):
    """The same of an autoregressive network, whose tokens are its steps; its modules are not hidden."""
    end = tokenizer.eos_token_id

    def go_on(prompts):
        free = max(canvas - len(prompt) for prompt in prompts)
        return autoregressive.complete(net, prompts, new_tokens=free, eos=end).tokens

    swapped = [put(one.ids[: one.prompt], range(*one.subject), one.partner.subject) for one in found]
    hidden = go_on(swapped)
    longest = max(one.answer[1] - one.prompt for one in found)
    cases, prompts = [], []
    for one, other, said in zip(found, swapped, hidden, strict=True):
        own = one.ids[: one.prompt]
        for step in evenly(0, longest, timing.starts):
            cases += [(one, "from", step), (one, "until", step)]
            prompts += [other + one.ids[one.prompt :][:step], own + said[:step]]
    rows = []
    for (one, way, step), prompt, more in zip(cases, prompts, go_on(prompts), strict=True):
        about = {"fact": one.row.fact, "reading": "recalled", "hidden": way, "kind": "subject", "step": step}
        rows.append(about | {"value": _right(tokenizer, one, prompt + more)})
    return pd.DataFrame(rows)


def carried(net, tokenizer, found, sites, sampling, steps):
    """What a state of the subject that is put back at t1 alone does later, through the tokens that it wrote.

    At later steps, with the subject hidden: the log-probability of the tokens that the clean run has still to reveal
    there, on the canvas of the clean run ("neither"), of the one with the subject hidden throughout ("subject"), and of
    the one with the state put back ("restored"). And whether the finished answer is right, at stage "end".
    """
    cases = [(one, None) for one in found]
    cases += [(one, site) for one in found for site in sites]
    done = _generate(net, [(one, back_at(one.t1, site) if site else since(0)) for one, site in cases], sampling, steps)
    mask, rows, asked = network.mask_id(net), [], []
    finished = {}
    for number, ((one, site), ids) in enumerate(zip(cases, done.canvas.tolist(), strict=True)):
        kind, layer = site or ("subject", None)
        about = {"fact": one.row.fact, "reading": "carried", "hidden": "restored" if site else "subject"}
        about |= {"kind": kind, "layer": layer}
        rows.append(about | {"stage": "end"})
        finished[len(rows) - 1] = _right(tokenizer, one, ids)
        for step in one.steps[1:]:
            clean, wanted = one.entering(net, step)
            pairs = one.asked(net, wanted)
            runs = {about["hidden"]: done.entering(step)[number].tolist()}
            if not site:
                runs["neither"] = clean
            for hidden, canvas in runs.items():
                canvas = put(canvas, range(*one.subject), one.partner.subject)
                rows.append(about | {"hidden": hidden, "stage": one.stage(step), "step": step, "remaining": len(pairs)})
                asked.append((put(canvas, wanted, [mask] * len(wanted)), pairs))
    values = iter(log_probabilities(net, asked))
    return pd.DataFrame(
        [row | {"value": finished.get(i) if i in finished else next(values)} for i, row in enumerate(rows)]
    )


def peaks(traces):
    """Of each kind that severs nothing, the layer that returns most at the whole subject at t1: (kind, layer)."""
    corruption = leading(name for trace in traces for name in trace.kinds)
    effects = {kind: at_first(traces, corruption, kind)[0] for kind in WHOLE}
    whole = ROLES.index("whole subject")
    return [(kind, int(values[:, whole].mean(0).argmax())) for kind, values in effects.items() if len(values)]
