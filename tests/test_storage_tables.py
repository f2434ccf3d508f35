"""Which layers and which facts each comparison uses."""

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from reversal.storage import files as storage_files
from reversal.storage import tables as storage_tables
from reversal.storage import vocabulary

FACTS = [f"both-{i:02}" for i in range(12)]
PAIRS = [("both_p2d", "both_d2p")]
STATISTICS = storage_tables.Statistics(components=2, permutations=100, seed=1)


def write_vectors(path, layers, unconverged=(), seed=0, unmoved=()):
    """Write random vectors of twelve facts to `path`, with values in all layers."""
    rng = np.random.default_rng(seed)
    widths = {"key": 6, "output": 4, "state": 4}
    activations = {
        layer: {
            f"{kind} at {position}": rng.standard_normal((4, 12, width))
            for kind, width in widths.items()
            for position in vocabulary.POSITIONS
        }
        for layer in layers
    }
    extractions = [[] for _ in range(2)]
    for layer in layers:
        for of_templates in extractions:
            converged = [fact not in unconverged for fact in FACTS]
            steps = [0 if fact in unmoved else 3 for fact in FACTS]
            outcomes = pd.DataFrame({"fact": FACTS, "layer": layer, "converged": converged, "steps": steps})
            value = rng.standard_normal((12, 4))
            of_templates.append(storage_files.Extraction(layer, FACTS, value, value, value, outcomes))
    storage_files.write_vectors(FACTS, activations, extractions, path)


def compare(folder, peaks=None, job=None):
    options = {"pairs": PAIRS, "groups": dict.fromkeys(FACTS, "both"), "statistics": STATISTICS, "job": job}
    return storage_tables.compare({"mdm/seed_1": folder}, peaks={"mdm/seed_1": peaks or {}}, **options)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keyvalue")
    for number, (split, unconverged) in enumerate((("both_p2d", FACTS[:1]), ("both_d2p", FACTS[1:3]))):
        write_vectors(folder / f"{split}.safetensors", (0, 1), unconverged, seed=number)
    return compare(folder, {"p2d": 1, "d2p": 0})


def test_one_layer_at_a_time_is_in_memory(tmp_path):
    large = np.zeros((4, 12, 12_500), np.float32)  # 2.4 MB
    storage_files.write_vectors(
        FACTS, {layer: {"key at subject": large} for layer in range(6)}, [], tmp_path / "vectors"
    )
    stored = storage_files.StoredVectors(tmp_path / "vectors")
    tracemalloc.start()
    assert [stored[layer].facts for layer in stored] == [FACTS] * 6
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert large.nbytes < peak < 3 * large.nbytes


def test_values_are_compared_for_converged_facts_and_activations_for_every_fact(compared):
    table = compared["symmetry"]
    counts = table[table.statistic != vocabulary.SEARCHED].groupby("comparison").n.unique()
    for comparison, n in counts.items():
        assert n.tolist() == [12 if comparison in vocabulary.WITHOUT_VALUES else 9]
    scatter = compared["pca"].groupby("comparison").fact.unique()
    assert set(scatter[vocabulary.SHOWN_COMPARISONS[2]]) == set(FACTS)
    assert set(scatter[vocabulary.PRIMARY_COMPARISONS["name"]]) == set(FACTS[3:])


@pytest.mark.parametrize("unmoved", [2, 9])
def test_values_that_no_search_moved_are_left_out_and_where_most_are_the_direction_has_no_values(tmp_path, unmoved):
    for number, split in enumerate(PAIRS[0]):
        moved = () if number == 0 else FACTS[:unmoved]
        write_vectors(tmp_path / f"{split}.safetensors", (0,), unconverged=FACTS[-1:], unmoved=moved, seed=number)
    table = compare(tmp_path)["symmetry"]
    counts = table[table.statistic == vocabulary.PRIMARY_STATISTIC].set_index("comparison").n
    name, description = vocabulary.PRIMARY_COMPARISONS.values()
    if unmoved == 2:
        assert counts[name] == counts[description] == 9
    else:
        assert counts[description] == 11 and name not in counts and "fact: value" not in counts
    share = table[table.statistic == vocabulary.SEARCHED].set_index("comparison")
    assert share.value.tolist() == pytest.approx([1, (11 - unmoved) / 11]) and set(share.n) == {11}


def test_the_peak_takes_each_direction_at_its_own_layer(compared):
    table = compared["symmetry"].set_index(["layer", "statistic", "comparison"]).value
    assert set(compared["symmetry"].layer) == {"peak", "0", "1"}
    within = [f"within {direction}: output at subject × value" for direction in vocabulary.DIRECTIONS]
    for comparison, layer in zip(within, "10", strict=True):
        assert table["peak", "debiased_cka", comparison] == table[layer, "debiased_cka", comparison]


def test_every_comparison_and_space_comes_once_a_layer(compared):
    keys = ["layer", "comparison", "statistic"]
    assert not compared["symmetry"].duplicated(keys).any()
    assert set(compared["symmetry"].comparison) == set(vocabulary.PAIRS)
    assert not compared["spectra"].duplicated(["layer", "space", "component"]).any()
    assert set(compared["spectra"].space) == {
        side for pair in vocabulary.SHOWN_COMPARISONS for side in vocabulary.PAIRS[pair]
    }


def test_layers_compared_in_parallel_give_the_same_tables(tmp_path):
    for split in PAIRS[0]:
        write_vectors(tmp_path / f"{split}.safetensors", (0, 1))
    messages = []
    serial, parallel = (
        compare(tmp_path, job=job) for job in (None, SimpleNamespace(threads=2, log_line=messages.append))
    )
    assert len(messages) == 4 and set(serial["symmetry"].layer) == {"0", "1"}
    for name, table in serial.items():
        pd.testing.assert_frame_equal(table, parallel[name])


def make_edits(model, layers, site="layer"):
    values = [0.1, 0.30000000000000004][: len(layers)]
    return pd.DataFrame({"value": values, "model": model, "layer": layers, "group": "both", "site": site})


def test_joined_edits_have_a_column_that_marks_the_peak_of_the_forward_direction():
    tables = [make_edits("mdm", [1, 2]), make_edits("ar", [3, 2]), make_edits("ar", [0, 2], site=["random", "layer"])]
    joined = storage_tables.join_edits(tables, [{"p2d": 2, "d2p": 1}, {}, {}])
    assert list(joined) == ["value", "model", "layer", "peak", "group", "site"]
    assert joined.peak.tolist() == [False, True, False, True, False, True], "without peaks it is the lowest layer"
    assert joined.to_csv(index=False).splitlines()[1:3] == [
        "0.1,mdm,1,False,both,layer",
        "0.30000000000000004,mdm,2,True,both,layer",
    ]
