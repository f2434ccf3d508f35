"""What single layers and heads hold of an answer: the logit lens at every denoising step, and effects of heads.

And how well attribution patching, the gradient's estimate of a trace, agrees with the exact one.
"""

import pandas as pd
import torch

from ..common import batches
from ..models import hooks, network
from . import engine

LENS_COLUMNS = ["fact", "token", "revealed", "step", "layer", "probability"]
HEADS_COLUMNS = ["fact", "layer", "head", "effect", "total"]
ATTRIBUTION_COLUMNS = ["fact", "stage", "correlation", "missed", "cost"]
TOP = 10  # sites with the largest exact effects, which an estimate should not miss


def read_layers(net, questions):
    """The logit lens: probabilities of answer tokens read out of every layer, as if it were the last.

    A table with LENS_COLUMNS, of a diffusion network's `questions` (`study.AnsweredQuestion`s): for every step up to
    t2, each answer token still masked, and each layer. `token` counts the tokens in the order in which they are
    revealed, `revealed` is the step that reveals it.
    """
    rows, requests = [], []
    for question in questions if network.is_diffusion(net) else ():
        order = [positions[0] for _, positions in question.conditionals(net, question.t1)]
        revealed = {position: step for position, _, step, _ in question.completion["revealed"]}
        for step in range(question.t2 + 1):
            canvas, positions = question.step_input(net, step)
            requests.append((canvas, question.answer_pairs(net, positions)))
            rows.append([(question.row.fact, order.index(p), revealed[p], step) for p in positions])
    values = [
        (*labels, layer, probability)
        for labels_of_request, probabilities in zip(rows, _decode_layers(net, requests), strict=True)
        for labels, by_layer in zip(labels_of_request, probabilities, strict=True)
        for layer, probability in enumerate(by_layer)
    ]
    return pd.DataFrame(values, columns=LENS_COLUMNS)


@torch.no_grad()
def _decode_layers(net, requests):
    """For each request, ids and (position, token) pairs, the probabilities [pair][layer] of these tokens."""
    norm, blocks = network.final_norm(net), dict(enumerate(network.layers(net)))
    device = net.get_input_embeddings().weight.device

    def decode(indices):
        pairs = [(row, *pair) for row, i in enumerate(indices) for pair in requests[i][1]]
        row, position, token = torch.tensor(pairs, device=device).T
        with hooks.record_outputs(blocks) as states:
            network.hidden(net, torch.tensor([requests[i][0] for i in indices], device=device))
        by_layer = []
        for layer in blocks:
            probabilities = network.logits(net, norm(states[layer][row, position])).float().softmax(-1)
            by_layer.append(probabilities.gather(1, token[:, None])[:, 0])
        return torch.stack(by_layer, 1).cpu().split([len(requests[i][1]) for i in indices])

    decoded = batches.run_by_length(decode, [len(ids) for ids, _ in requests], device)
    return [probabilities.tolist() for probabilities in decoded]


def _corrupt(net, question, step):
    """The `engine.Problem` of a step with the partner's subject; the answer positions are restored together."""
    canvas, positions = question.step_input(net, step)
    pairs = question.answer_pairs(net, positions)
    corrupted = engine.replace_subject(net, canvas, question.subject, question.partner.subject)
    return engine.Problem(engine.embed(net, canvas), corrupted, pairs, [tuple(position for position, _ in pairs)])


def measure_heads(net, questions):
    """Nats of the answer that each attention head recovers when it is restored at the answer positions, at t1.

    A table with HEADS_COLUMNS, of questions with a swap partner; `total` is the total effect of the swap.
    """
    values = []
    for question in [question for question in questions if question.partner]:
        [runs] = engine.restore(net, [_corrupt(net, question, question.t1)], kind="head")
        trace = engine.score_runs(runs)
        total = trace.log_clean - trace.log_corrupted
        for head, by_layer in enumerate((trace.log_restored - trace.log_corrupted).tolist()):
            values += [(question.row.fact, layer, head, effect, total) for layer, effect in enumerate(by_layer)]
    return pd.DataFrame(values, columns=HEADS_COLUMNS)


def attribute(net, problem):
    """Attribution patching: first-order estimates (positions, layers) of the indirect effects of hidden states.

    The gradient of the answer's log-probability in the corrupted run, times what restoring a state would change. All
    sites together take one run of each kind and one backward pass.
    """
    blocks = dict(enumerate(network.layers(net)))
    embedded = torch.cat([problem.clean[None], problem.corrupted]).requires_grad_()
    position, token = torch.tensor(problem.answer_pairs(), device=embedded.device).T
    with torch.enable_grad(), hooks.keep_outputs(blocks) as outputs:
        score = engine.log_probabilities(net, embedded, position, token)[1:].sum() / len(problem.corrupted)
        gradients = torch.autograd.grad(score, list(outputs.values()))
    pairs = zip(outputs.values(), gradients, strict=True)
    effects = [((states[:1] - states) * gradient).sum((0, 2)) for states, gradient in pairs]
    return torch.stack(effects, 1).detach().cpu()


def measure_attribution(net, questions, traces):
    """How attribution patching agrees with the exact `traces` of hidden states under a swap, at each of their steps.

    A table with ATTRIBUTION_COLUMNS: Spearman's `correlation` over single sites; the share of the TOP sites that is
    `missed`, not among the TOP of the estimate; and the `cost` of the exact trace in those of the estimate, in layers
    run on tokens, a backward pass counted as two runs.
    """
    values, by_fact = [], {trace.metadata["fact"]: trace for trace in traces if "state" in trace.kinds.get("swap", ())}
    for question in [question for question in questions if question.partner and question.row.fact in by_fact]:
        trace = by_fact[question.row.fact]
        for step, stage, exact in zip(
            trace.steps, trace.stages(), trace.indirect_effects("swap", "state"), strict=True
        ):
            estimate = attribute(net, _corrupt(net, question, step)).double().numpy()
            exact = exact[: len(estimate)]
            ranks = [pd.Series(effects.ravel()).rank() for effects in (exact, estimate)]
            strongest = [set(rank.nlargest(TOP).index) for rank in ranks]
            missed = 1 - len(set.intersection(*strongest)) / len(strongest[0])
            row = (
                question.row.fact,
                stage,
                ranks[0].corr(ranks[1]),
                missed,
                _compare_costs(net, question, exact.shape),
            )
            values.append(row)
    return pd.DataFrame(values, columns=ATTRIBUTION_COLUMNS)


def _compare_costs(net, question, shape):
    """The cost of an exact trace of `shape` (positions, layers), in those of `attribute`."""
    positions, layers = shape
    tokens = positions**2  # each position is restored in a run of all positions
    if not network.is_diffusion(net):  # or of those from it on, if it is not before the subject
        tokens = sum(positions - position for position in range(question.subject[0], positions))
    base = 2 * positions * layers
    return (base + tokens * layers * (layers - 1) / 2) / (2 * base)
