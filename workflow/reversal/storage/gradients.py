"""Do the forward and the reverse prompt of a fact depend on the same weights? The gradients of both.

If storage is shared, a step that trains one direction helps the other, to first order. For gradients f of a fact's
forward loss and r of its reverse loss, a small step down the first changes the second by −⟨f, r⟩. With f′ the gradient
from other templates of the same prompt, ⟨f, r⟩ / ⟨f, f′⟩ is the share of the forward gain that transfers. The null is
the r of other facts: what any two prompts share. The ceiling is f′.

For a network too large for its own gradients an adapter's are used. Its B starts at 0, so that A has no gradient, and
B's gradient is the matrix's own times a random Aᵀ: a random projection, which preserves angles up to some noise.
"""

import numpy as np
import pandas as pd
import torch

from ..models import network
from .scoring import answer_loss, collate, encode_question

COLUMNS = ("measure", "part", "against", "fact", "cosine", "cosine_others", "product", "product_others")
# The gradient g, and the attribution g ⊙ w: minus what setting a weight w to 0 adds to the loss, to first order. The
# latter does not depend on the scale of a layer whose output is normalised.
MEASURES = ("gradient", "attribution")


def split_parameters(net):
    """{part: parameters}: the trainable ones of each of `network.parts`, and the rest."""
    parts = {name: list(module.parameters()) for name, module in network.parts(net).items()}
    in_layers = {id(parameter) for parameters in parts.values() for parameter in parameters}
    parts["rest"] = [parameter for parameter in net.parameters() if id(parameter) not in in_layers]
    parts = {
        part: [parameter for parameter in parameters if parameter.requires_grad] for part, parameters in parts.items()
    }
    return {part: parameters for part, parameters in parts.items() if parameters}


def compute_gradients(lm, rows, facts):
    """{part: gradients (facts, parameters)} of each fact's loss over its `rows`, in nats a token."""
    parts = split_parameters(lm.net)
    gradients = {part: [] for part in parts}
    for fact in facts:
        lm.net.zero_grad()
        sequences = [encode_question(lm, row) for row in rows if row.fact == fact]
        answer_loss(lm.net, collate(lm.net, sequences)).backward()
        for part, parameters in parts.items():
            # An embedding that no row uses has no gradient.
            gradients_or_zeros = (torch.zeros_like(p) if p.grad is None else p.grad for p in parameters)
            gradients[part].append(torch.cat([tensor.flatten() for tensor in gradients_or_zeros]))
    lm.net.zero_grad()
    return {part: torch.stack(rows_of_part) for part, rows_of_part in gradients.items()}


def compare(lm, forward_rows, reverse_rows, *, max_facts=None):
    """Compare each fact's forward gradient with its own reverse gradient and with others': a table with `COLUMNS`.

    `against` is "reverse", or "forward" for the ceiling: the same prompt with other templates. A row has a fact's own
    cosine and product, and the means over the other facts.
    """
    facts = sorted({row.fact for row in forward_rows})[:max_facts]
    if not facts:
        return pd.DataFrame(columns=COLUMNS)
    odd, even = ([row for row in forward_rows if row.template % 2 == rest] for rest in (1, 0))
    gradients = [compute_gradients(lm, rows, facts) for rows in (odd, reverse_rows, even)]
    weights = {
        part: torch.cat([parameter.detach().flatten() for parameter in parameters])
        for part, parameters in split_parameters(lm.net).items()
    }
    tables = []
    for measure in MEASURES:
        if measure == "attribution":
            gradients = [{part: rows * weights[part] for part, rows in side.items()} for side in gradients]
            if not any(rows.any() for rows in gradients[0].values()):
                continue  # an adapter: where it has a gradient, its weights are 0
        forward, reverse, paraphrase = gradients
        for against, other in (("reverse", reverse), ("forward", paraphrase)):
            products = {part: (forward[part] @ other[part].T).double().cpu() for part in forward}
            norms = {part: [side[part].double().norm(dim=1).cpu() for side in (forward, other)] for part in forward}
            # Over all weights, products and squared norms add up.
            products["all"] = sum(products.values())
            norms["all"] = [sum(norm[side] ** 2 for norm in norms.values()).sqrt() for side in (0, 1)]
            for part, product in products.items():
                cosine = product / norms[part][0][:, None] / norms[part][1]
                columns = [column for table in (cosine, product) for column in _split_diagonal(table.numpy())]
                columns = (measure, part, against, facts, *columns)
                tables.append(pd.DataFrame(dict(zip(COLUMNS, columns, strict=True))))
    return pd.concat(tables, ignore_index=True)


def _split_diagonal(table):
    """The diagonal (n,) of a table (n, n), and the mean (n,) of each row's other entries."""
    n = len(table)
    diagonal = np.diagonal(table)
    return diagonal, (table.sum(1) - diagonal) / (n - 1)
