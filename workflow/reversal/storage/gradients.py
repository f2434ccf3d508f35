"""Do a fact's two questions pull at the same weights? Gradients of both, fact by fact, and where attention looks.

If one memory serves both questions, the step that teaches one helps the other, to first order. For gradients f of a
fact's forward loss and r of its reverse loss, −⟨f, r⟩ is what a small step down the first changes the second by, and
⟨f, r⟩ over ⟨f, f′⟩, with f′ from other templates of the same question, is how much of the forward gain carries over.
Other facts' r are the null: what any two questions share. f′ is also the ceiling of what could be seen.

Beside a network too large for its own gradients, those of an adapter will do. Its B starts at 0, so that A has none
and B's are the matrix's own times a random Aᵀ: a random projection, which keeps angles but for some noise.
"""

from contextlib import contextmanager

import numpy as np
import pandas as pd
import torch

from ..models import network
from .scoring import answer_loss, collate, question

COLUMNS = ("part", "against", "fact", "cosine", "cosine_others", "product", "product_others", "p")
PERMUTATIONS = 10_000


def parts(net):
    """{name: parameters}: of those that have gradients, attention and MLP of each layer, and the rest."""
    found = {}
    for i, block in enumerate(network.layers(net)):
        found[f"attention {i}"] = list(network.attention(block).parameters())
        found[f"mlp {i}"] = list(network.mlp(block).parameters())
    inner = {id(parameter) for some in found.values() for parameter in some}
    found["rest"] = [parameter for parameter in net.parameters() if id(parameter) not in inner]
    moving = {name: [one for one in some if one.requires_grad] for name, some in found.items()}
    return {name: parameters for name, parameters in moving.items() if parameters}


def gradients(lm, rows, names):
    """{part: gradients (facts, parameters)} of each fact's loss over its `rows`, in nats a token."""
    own = parts(lm.net)
    found = {part: [] for part in own}
    for name in names:
        lm.net.zero_grad()
        asked = [question(lm, row) for row in rows if row.fact == name]
        answer_loss(lm.net, collate(lm.net, asked)).backward()
        for part, parameters in own.items():
            # An embedding that no row uses has no gradient.
            moved = (torch.zeros_like(one) if one.grad is None else one.grad for one in parameters)
            found[part].append(torch.cat([gradient.flatten() for gradient in moved]))
    lm.net.zero_grad()
    return {part: torch.stack(some) for part, some in found.items()}


def compare(lm, ahead, back, *, rng, max_facts=None):
    """How each fact's forward gradient lies to its reverse one and to others': a table with `COLUMNS`.

    `against` is "reverse", or "forward" for the ceiling: the same question with other templates. A row has a fact's
    own cosine and product, and the means over the other facts; `p`, the same for all facts, is how often facts paired
    at random have a mean cosine as large. The last rows are `compare_attention`'s.
    """
    names = sorted({row.fact for row in ahead})[:max_facts]
    if not names:
        return pd.DataFrame(columns=COLUMNS)
    odd, even = ([row for row in ahead if row.template % 2 == rest] for rest in (1, 0))
    forward = gradients(lm, odd, names)
    tables = []
    for against, rows in (("reverse", back), ("forward", even)):
        other = gradients(lm, rows, names)
        products = {part: (forward[part] @ other[part].T).double().cpu() for part in forward}
        norms = {part: [some[part].double().norm(dim=1).cpu() for some in (forward, other)] for part in forward}
        # Of all weights together: products and squares add up.
        products["all"] = sum(products.values())
        norms["all"] = [sum(own[side] ** 2 for own in norms.values()).sqrt() for side in (0, 1)]
        for part, product in products.items():
            cosine = product / norms[part][0][:, None] / norms[part][1]
            columns = [column for table in (cosine, product) for column in _own_and_others(table.numpy())]
            columns = (part, against, names, *columns, paired_by_chance(cosine.numpy(), rng))
            tables.append(pd.DataFrame(dict(zip(COLUMNS, columns, strict=True))))
    return pd.concat([*tables, compare_attention(lm, ahead, back, names, rng=rng)], ignore_index=True)


def _own_and_others(table):
    """Of a table (facts, facts) its diagonal, and each row's mean beside it."""
    n = len(table)
    own = np.diagonal(table)
    return own, (table.sum(1) - own) / (n - 1)


def paired_by_chance(table, rng):
    """How often a random pairing of rows and columns of a `table` (n, n) has a mean as large as the diagonal's."""
    n = len(table)
    drawn = table[np.arange(n), rng.permuted(np.tile(np.arange(n), (PERMUTATIONS, 1)), axis=1)].mean(1)
    return (1 + (drawn >= np.diagonal(table).mean()).sum()) / (1 + PERMUTATIONS)


@torch.no_grad()
def attention_to_subject(lm, rows, names):
    """Where each fact's answer looks for its subject: the mean attention (facts, layers × heads) over its `rows`."""
    maps = []
    with _weights_given(lm.net):
        for name in names:
            of_fact = []
            for batch in collate(lm.net, [question(lm, row) for row in rows if row.fact == name]):
                run = lm.net.base_model(input_ids=batch.ids, output_attentions=True, use_cache=False)
                weights = torch.stack(run.attentions, 1)  # (B, layers, heads, T, T)
                looked = weights[batch.row, :, :, batch.position, batch.place[batch.row]]  # (P, layers, heads)
                of_fact.append(looked.flatten(1).double().mean(0))
            maps.append(torch.stack(of_fact).mean(0))
    return torch.stack(maps).cpu().numpy()


@contextmanager
def _weights_given(net):
    """While it lasts, attention is computed so that its weights can be had."""
    given = net.config._attn_implementation
    net.set_attn_implementation("eager")
    try:
        yield
    finally:
        net.set_attn_implementation(given)


def compare_attention(lm, ahead, back, names, *, rng):
    """The same of where a fact's answers look: correlations over heads of its forward and its reverse map.

    What all facts have in common is taken out first. Products have no meaning here and are left out.
    """
    maps = [attention_to_subject(lm, rows, names) for rows in (ahead, back)]
    maps = [one - one.mean(0) for one in maps]
    scaled = [one / np.linalg.norm(one, axis=1, keepdims=True) for one in maps]
    table = scaled[0] @ scaled[1].T
    own, others = _own_and_others(table)
    how = {"part": "attention to the subject", "against": "reverse", "p": paired_by_chance(table, rng)}
    return pd.DataFrame({"fact": names, "cosine": own, "cosine_others": others}).assign(**how).reindex(columns=COLUMNS)
