from reversal.models import network
from reversal.recall import ablation

SAMPLING = {"canvas": 80, "steps": 2, "guidance": 0.0, "order": "confidence", "temperature": 0.0, "schedule": "linear"}
SAMPLING |= {"block": None, "remasking": "none"}


def test_every_variant_is_scored_on_every_split(generated, tokenizer):
    net = network.new(causal=False, vocab=len(tokenizer), width=16, layers=1, heads=2, mlp=32, eos=0, seed=0)
    splits = {name: generated[2][name][:3] for name in ("d2p_same", "p2d_same")}
    factors = {"steps": [1, 2], "block": [None, 8], "remasking": ["none", "low_confidence"], "canvas": [80, 90]}
    table = ablation.ablate(net, tokenizer, splits, sampling={**SAMPLING, "steps": 10}, factors=factors)
    assert len(table) == 2 * (3 + 2 + 2 + 2) and (table.n == 3).all()
    assert table.groupby("factor").configured.sum().eq(2).all()
    configured = table[table.configured].groupby("split").correct
    assert (configured.nunique() == 1).all()  # the same settings in each factor
