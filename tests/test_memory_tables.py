"""Which layers are compared, and which facts each comparison rests on."""

import dataclasses
import tracemalloc

import pandas as pd
import pytest
import torch

from reversal.memory import files as memory_files
from reversal.memory import tables as memory_tables
from reversal.memory import vocabulary

FACTS = [f"both-{i:02}" for i in range(12)]
PAIRS = [("both_p2d", "both_d2p")]
STATISTICS = memory_tables.Statistics(components=2, folds=2, permutations=100, seed=1)
PEAKS = {"mdm/seed_1": {"p2d": 1, "d2p": 0}}


def extraction(layer, unconverged, seed):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    outcomes = pd.DataFrame({"fact": FACTS, "layer": layer, "converged": [fact not in unconverged for fact in FACTS]})
    return memory_files.Extraction(layer, FACTS, draw(12, 6), draw(12, 4), draw(12, 4), draw(4, 6), outcomes)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keyvalue")
    for number, (split, unconverged) in enumerate((("both_p2d", FACTS[:1]), ("both_d2p", FACTS[1:3]))):
        some = [extraction(layer, unconverged, 10 * number + layer) for layer in (0, 1)]
        memory_files.write(some, folder / f"{split}.safetensors")
    groups = dict.fromkeys(FACTS, "both")
    how = {"pairs": PAIRS, "groups": groups, "statistics": STATISTICS}
    return memory_tables.compare({"mdm/seed_1": folder}, peaks=PEAKS, **how)


def test_one_layer_at_a_time_is_held_in_memory(tmp_path):
    large = torch.zeros(12, 100_000)  # 4.8 MB
    memory_files.write([extraction(layer, [], layer)._replace(original=large) for layer in range(6)], tmp_path / "some")
    stored = memory_files.Stored(tmp_path / "some")
    tracemalloc.start()
    assert [stored[layer].layer for layer in stored] == list(range(6))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert large.nbytes < peak < 3 * large.nbytes


def test_values_are_compared_where_both_searches_converged_and_keys_for_every_fact(compared):
    counts = compared["symmetry"].groupby("comparison").n.unique()
    for comparison, n in counts.items():
        assert n.tolist() == [12 if comparison in vocabulary.KEYS_ALONE else 9]
    scatter = compared["pca"].groupby("comparison").fact.unique()
    assert set(scatter["keys: forward × reverse"]) == set(FACTS)
    assert set(scatter["values: forward × reverse"]) == set(FACTS[3:])


def test_the_peak_takes_each_direction_at_its_own_layer(compared):
    peak = compared["symmetry"][compared["symmetry"].layer == "peak"]
    assert set(peak.layer_forward) == {1} and set(peak.layer_reverse) == {0}
    assert set(compared["symmetry"].layer) == {"peak", "0", "1"}


def test_every_comparison_and_space_comes_once_a_layer(compared):
    keys = ["layer", "comparison", "statistic"]
    assert not compared["symmetry"].duplicated(keys).any()
    assert set(compared["symmetry"].comparison) == set(vocabulary.PAIRS)
    assert not compared["spectra"].duplicated(["layer", "space", "component"]).any()
    assert compared["spectra"].space.nunique() == 6


def test_what_fine_tuning_added_is_told_at_the_peak_for_the_named_tests(tmp_path):
    for stage, seed in (("seed_1", 0), ("base", 50)):
        for split in PAIRS[0]:
            some = [extraction(layer, FACTS[: layer + 1], seed + layer) for layer in (0, 1)]
            memory_files.write(some, tmp_path / stage / f"{split}.safetensors")
    folders = {f"mdm/{stage}": tmp_path / stage for stage in ("seed_1", "base")}
    how = {"pairs": PAIRS, "groups": dict.fromkeys(FACTS, "both"), "statistics": STATISTICS}
    table = memory_tables.compare(folders, peaks=dict.fromkeys(folders, {"p2d": 1, "d2p": 0}), **how)["symmetry"]
    rows = table[table.statistic == vocabulary.BEYOND]
    assert set(rows.comparison) == set(vocabulary.CONCEPTS.values()) and (rows.n == 10).all()
    assert (rows.layer == "peak").all() and (rows.stage == "seed_1").all()
    at = table[(table.layer == "peak") & (table.statistic == vocabulary.HEADLINE)]
    gap = at[at.stage == "seed_1"].set_index("comparison").value - at[at.stage == "base"].set_index("comparison").value
    assert rows.set_index("comparison").value.to_dict() == pytest.approx(gap[rows.comparison].to_dict())


def test_without_peaks_layers_are_compared_with_themselves_alone(tmp_path):
    for split in PAIRS[0]:
        memory_files.write([extraction(1, [], 0)], tmp_path / f"{split}.safetensors")
    few = dataclasses.replace(STATISTICS, permutations=9)
    how = {"pairs": PAIRS, "groups": dict.fromkeys(FACTS, "both"), "statistics": few}
    tables = memory_tables.compare({"mdm/base": tmp_path}, peaks={"mdm/base": {}}, **how)
    assert set(tables["symmetry"].layer) == {"1"}


def edits(model, layers):
    return pd.DataFrame(
        {"value": [0.1, 0.30000000000000004][: len(layers)], "model": model, "layer": layers, "group": "both"}
    )


def test_edits_are_joined_with_the_peak_of_the_forward_question_beside_their_layer():
    joined = memory_tables.join_edits([edits("mdm", [1, 2]), edits("ar", [3, 2])], [{"p2d": 2, "d2p": 1}, {}])
    assert list(joined) == ["value", "model", "layer", "peak", "group"]
    assert joined.peak.tolist() == [False, True, False, True], "without peaks it is the lowest layer"
    assert joined.to_csv(index=False).splitlines()[1:3] == [
        "0.1,mdm,1,False,both",
        "0.30000000000000004,mdm,2,True,both",
    ]
