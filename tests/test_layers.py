"""Which layers are looked at: where tracing finds a clear effect of MLPs at the last subject token."""

import json

import numpy as np
import pytest
from trace_fixtures import with_effects

from reversal.common.errors import UserError
from reversal.data.facts import SPLITS
from reversal.storage import layers
from reversal.tracing.vocabulary import TOGETHER

PEAKS = {"p2d": 1, "d2p": 0}


def traced(*effects, **how):
    """Traces of four facts for each list of effects (L,) that a kind has at a role, by default MLPs at the last subject
    token; they differ a little from fact to fact."""
    shares = (0.9, 1.0, 1.1, 1.0)
    return [with_effects(np.multiply(share, one), **how) for one in effects for share in shares]


def test_the_peak_is_where_mlps_bring_most_back_at_the_last_subject_token():
    forward = traced(*[[1.0, 3.0, 2.0]] * 6)
    forward += traced([9.0, 0.0, 0.0], role="first subject") + traced([9.0, 0.0, 0.0], kind="attn")
    forward += traced([9.0, 0.0, 0.0], corruption="gaussian")
    assert layers.peaks({"p2d_same": forward, "d2p_same": traced([0.0, 0.0, 1.0])}) == {"p2d": 1, "d2p": 2}


def test_splits_of_one_direction_are_pooled():
    assert SPLITS["p2d_same"].direction == SPLITS["d2p_reverse"].direction == "p2d"
    study = {"p2d_same": traced([0.0, 4.0]), "d2p_reverse": traced(*[[3.0, 0.0]] * 9)}
    assert layers.peaks({**study, "d2p_same": traced([0.0, 1.0])}) == {"p2d": 0, "d2p": 1}


def test_the_effects_are_those_of_t1_whatever_comes_later():
    study = {"p2d_same": traced([0.0, 3.0], steps=3), "d2p_same": traced([0.0, 1.0], steps=1)}
    assert layers.peaks(study) == {"p2d": 1, "d2p": 1}


@pytest.mark.parametrize(
    "study",
    [
        {},
        {"p2d_same": traced([1.0, 2.0])},
        {"p2d_same": traced([1.0, 2.0]), "d2p_same": []},
        {"p2d_same": traced([1.0, 2.0]), "d2p_same": traced([1.0, 2.0], kinds=["state"])},
        {"p2d_same": traced([1.0, 2.0]), "d2p_same": traced([1.0, 2.0], corruption="gaussian")},
        {"p2d_same": traced([1.0, 2.0]), "d2p_same": traced([1.0, 2.0], roles=["last prompt", *TOGETHER])},
    ],
)
def test_there_are_no_peaks_unless_both_directions_were_traced(study):
    assert layers.peaks(study) == {}


@pytest.mark.parametrize("effects", [[[2.0, 0.0], [-2.0, 0.0]], [[0.0, 0.0]], [[-1.0, -2.0]]])
def test_without_a_clear_effect_tracing_points_nowhere(effects):
    assert layers.peaks({"p2d_same": traced([1.0, 2.0]), "d2p_same": traced(*effects)}) == {}


def test_peaks_are_read_from_their_file_and_absent_without_one(tmp_path):
    site = {"layer": 2, "role": "last prompt"}
    (tmp_path / "peaks.json").write_text(json.dumps(PEAKS | {"site": site}))
    assert layers.read(tmp_path / "peaks.json") == PEAKS and layers.read_site(tmp_path / "peaks.json") == site
    assert layers.read([]) == layers.read_site([]) == {}


@pytest.mark.parametrize(
    ("choice", "expected"), [("all", [0, 1, 2, 3]), ("peak", [0, 1]), ([3], [0, 1, 3]), ([1], [0, 1])]
)
def test_layers_can_be_chosen(choice, expected):
    assert layers.chosen_layers(choice, PEAKS, 4, "mdm") == expected


def test_a_layer_that_the_network_lacks_is_refused():
    with pytest.raises(UserError, match="layers has 4; mdm has layers 0–3"):
        layers.chosen_layers([1, 4], PEAKS, 4, "mdm")


def test_all_layers_are_taken_where_nothing_was_traced():
    assert layers.chosen_layers("peak", {}, 3, "mdm") == [0, 1, 2]


def test_values_are_sought_in_the_first_layer_where_nothing_was_traced():
    assert layers.value_layers("peak", {}, 3, "mdm") == [0]
    assert layers.value_layers("peak", PEAKS, 4, "mdm") == layers.chosen_layers("peak", PEAKS, 4, "mdm")
    assert layers.value_layers([2], {}, 3, "mdm") == [2]
