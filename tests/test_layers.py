"""Layers are chosen by the effect of MLPs at the last subject token, if its interval excludes 0."""

import json

import numpy as np
import pytest
from trace_fixtures import make_trace_with_effects

from reversal.common.errors import UserError
from reversal.data.facts import SPLITS
from reversal.storage import layers
from reversal.tracing.vocabulary import JOINT_ROLES

PEAKS = {"p2d": 1, "d2p": 0}


def make_traces(*effects, **options):
    """Four slightly different traces for each list of effects (L,), by default of MLPs at the last subject token."""
    factors = (0.9, 1.0, 1.1, 1.0)
    return [make_trace_with_effects(np.multiply(factor, layers), **options) for layers in effects for factor in factors]


def test_the_peak_has_the_largest_effect_of_mlps_at_the_last_subject_token():
    forward = make_traces(*[[1.0, 3.0, 2.0]] * 6)
    forward += make_traces([9.0, 0.0, 0.0], role="first subject") + make_traces([9.0, 0.0, 0.0], kind="attn")
    forward += make_traces([9.0, 0.0, 0.0], corruption="gaussian")
    assert layers.find_peaks({"p2d_same": forward, "d2p_same": make_traces([0.0, 0.0, 1.0])}) == {"p2d": 1, "d2p": 2}


def test_splits_of_one_direction_are_pooled():
    assert SPLITS["p2d_same"].direction == SPLITS["d2p_reverse"].direction == "p2d"
    study = {"p2d_same": make_traces([0.0, 4.0]), "d2p_reverse": make_traces(*[[3.0, 0.0]] * 9)}
    assert layers.find_peaks({**study, "d2p_same": make_traces([0.0, 1.0])}) == {"p2d": 0, "d2p": 1}


def test_only_effects_at_t1_count():
    study = {"p2d_same": make_traces([0.0, 3.0], steps=3), "d2p_same": make_traces([0.0, 1.0], steps=1)}
    assert layers.find_peaks(study) == {"p2d": 1, "d2p": 1}


@pytest.mark.parametrize(
    "study",
    [
        {},
        {"p2d_same": make_traces([1.0, 2.0])},
        {"p2d_same": make_traces([1.0, 2.0]), "d2p_same": []},
        {"p2d_same": make_traces([1.0, 2.0]), "d2p_same": make_traces([1.0, 2.0], kinds=["state"])},
        {"p2d_same": make_traces([1.0, 2.0]), "d2p_same": make_traces([1.0, 2.0], corruption="gaussian")},
        {"p2d_same": make_traces([1.0, 2.0]), "d2p_same": make_traces([1.0, 2.0], roles=["last prompt", *JOINT_ROLES])},
    ],
)
def test_there_are_no_peaks_unless_both_directions_were_traced(study):
    assert layers.find_peaks(study) == {}


@pytest.mark.parametrize("effects", [[[2.0, 0.0], [-2.0, 0.0]], [[0.0, 0.0]], [[-1.0, -2.0]]])
def test_there_are_no_peaks_unless_the_intervals_of_both_directions_exclude_0(effects):
    assert layers.find_peaks({"p2d_same": make_traces([1.0, 2.0]), "d2p_same": make_traces(*effects)}) == {}


def test_peaks_are_read_from_their_file_and_empty_without_one(tmp_path):
    site = {"layer": 2, "role": "last prompt"}
    (tmp_path / "peaks.json").write_text(json.dumps(PEAKS | {"site": site}))
    assert layers.read_peaks(tmp_path / "peaks.json") == PEAKS and layers.read_site(tmp_path / "peaks.json") == site
    assert layers.read_peaks([]) == layers.read_site([]) == {}


@pytest.mark.parametrize(
    ("choice", "expected"), [("all", [0, 1, 2, 3]), ("peak", [0, 1]), ([3], [0, 1, 3]), ([1], [0, 1])]
)
def test_a_choice_of_layers_is_resolved(choice, expected):
    assert layers.resolve_layers(choice, PEAKS, 4, "mdm") == expected


def test_a_layer_that_the_network_lacks_is_rejected():
    with pytest.raises(UserError, match="layers has 4; mdm has layers 0–3"):
        layers.resolve_layers([1, 4], PEAKS, 4, "mdm")


def test_without_peaks_all_layers_are_chosen():
    assert layers.resolve_layers("peak", {}, 3, "mdm") == [0, 1, 2]


def test_without_peaks_values_are_optimised_in_the_first_layer():
    assert layers.resolve_value_layers("peak", {}, 3, "mdm", {}) == []
    assert layers.resolve_value_layers("peak", {}, 3, "mdm", {"layer": 1, "role": "first subject"}) == []
    assert layers.resolve_value_layers("peak", {}, 3, "mdm", {"layer": 1, "role": "last subject"}) == [1]
    assert layers.resolve_value_layers("peak", PEAKS, 4, "mdm", {}) == layers.resolve_layers("peak", PEAKS, 4, "mdm")
    assert layers.resolve_value_layers([2], {}, 3, "mdm", {}) == [2]
