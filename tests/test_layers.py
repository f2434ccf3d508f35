"""Which layers are looked at: the peaks are those of the table of traces."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reversal.common.errors import UserError
from reversal.data.facts import SPLITS
from reversal.memory import layers
from reversal.tracing import tables as trace_tables
from reversal.tracing import vocabulary
from reversal.tracing.files import FactTrace

KINDS = ["state", "mlp", "attn"]
SUBJECT = ["first subject", "last subject", "last prompt", "whole subject"]
PEAKS = {"p2d": 1, "d2p": 0}


def traced(effects, *, corruption="gaussian", kinds=KINDS, kind="mlp", role="last subject", steps=1, roles=SUBJECT):
    """The trace of a fact in which restoring `kind` at a `role` has these effects (L,), and nothing else has any."""
    restored = np.full((len(kinds), steps, len(roles), len(effects)), 0.25, np.float32)
    if kind in kinds and role in roles:
        restored[kinds.index(kind), :, roles.index(role)] += np.array(effects, np.float32)
    return whole({corruption: kinds}, {corruption: restored}, [roles] * steps)


def whole(kinds, restored, roles):
    steps = len(roles)
    arrays = {}
    for score in ("probability", "log_probability"):
        arrays[f"{score}.clean"] = np.full(steps, 0.9, np.float32)
        for name, array in restored.items():
            arrays |= {f"{score}.{name}.corrupted": np.full(steps, 0.25, np.float32), f"{score}.{name}.restored": array}
    return FactTrace({"fact": "f", "t1": 0, "t2": steps - 1}, list(range(steps)), roles, kinds, arrays)


def from_the_table(traces_by_split):
    """The peaks as the table of all traces gives them: rows of several splits weighted by their facts."""
    tables = [trace_tables.aggregate(some, model="m", seed=1, split=split) for split, some in traces_by_split.items()]
    table = pd.concat([table for table in tables if len(table)] or tables)
    where = {"kind": "mlp", "corruption": vocabulary.leading(table.corruption), "score": "probability"}
    where |= {"role": "last subject", "stage": "all"}
    rows = table[table.step.isna()]
    for column, value in where.items():
        rows = rows[rows[column] == value]
    found = {}
    for direction in ("p2d", "d2p"):
        own = rows[rows.direction == direction]
        if own.empty:
            return {}
        total = (own["mean"] * own.n).groupby(own.layer).sum() / own.groupby("layer").n.sum()
        found[direction] = int(total.idxmax())
    return found


@st.composite
def studies(draw):
    """Traces of some splits at random: of several corruptions, kinds and steps, some of which lack a role."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    depth, corruptions = draw(st.integers(1, 4)), draw(st.permutations(["gaussian", "mask", "swap"]))
    kinds = {name: draw(st.permutations(KINDS))[: draw(st.integers(1, 3))] for name in corruptions}
    study = {}
    for split in draw(st.lists(st.sampled_from(list(SPLITS)), min_size=1, unique=True)):
        study[split] = []
        for _ in range(draw(st.integers(0, 3))):
            own = draw(st.lists(st.sampled_from(corruptions), min_size=1, unique=True))
            roles = [
                [
                    "prior prompt",
                    draw(st.sampled_from(["last subject", "last prompt"])),
                    "last subject",
                    "whole subject",
                ]
                if draw(st.booleans())
                else ["prior prompt", "last prompt", None, "whole subject"]
                for _ in range(draw(st.integers(1, 3)))
            ]
            shape = (len(roles), 4, depth)
            restored = {name: rng.random((len(kinds[name]), *shape)).astype(np.float32) for name in own}
            study[split].append(whole({name: kinds[name] for name in own}, restored, roles))
    return study


@settings(max_examples=30, deadline=None, derandomize=True)
@given(studies())
def test_the_peaks_are_those_of_the_table_of_traces(study):
    assert layers.peaks(study) == from_the_table(study)


def test_the_peak_is_where_mlps_bring_most_back_at_the_last_subject_token():
    forward = [
        traced([0.1, 0.3, 0.2]),
        traced([0.9, 0.0, 0.0], role="first subject"),
        traced([0.9, 0.0, 0.0], kind="attn"),
        traced([0.9, 0.0, 0.0], corruption="swap"),
    ]
    assert layers.peaks({"p2d_same": forward, "d2p_same": [traced([0.0, 0.0, 0.1])]}) == {"p2d": 1, "d2p": 2}


def test_splits_of_one_direction_are_weighted_by_their_facts():
    assert SPLITS["p2d_same"].direction == SPLITS["d2p_reverse"].direction == "p2d"
    study = {"p2d_same": [traced([0.0, 0.4])], "d2p_reverse": [traced([0.3, 0.0])] * 9}
    assert layers.peaks({**study, "d2p_same": [traced([0.0, 0.1])]}) == {"p2d": 0, "d2p": 1}


def test_a_fact_of_many_steps_counts_once():
    study = {"p2d_same": [traced([0.4, 0.0], steps=3), *[traced([0.0, 0.3])] * 2], "d2p_same": [traced([0.0, 0.1])]}
    assert layers.peaks(study)["p2d"] == 1


@pytest.mark.parametrize(
    "study",
    [
        {},
        {"p2d_same": [traced([0.1, 0.2])]},
        {"p2d_same": [traced([0.1, 0.2])], "d2p_same": []},
        {"p2d_same": [traced([0.1, 0.2])], "d2p_same": [traced([0.1, 0.2], kinds=["state"])]},
        {"p2d_same": [traced([0.1, 0.2])], "d2p_same": [traced([0.1, 0.2], corruption="swap")]},
        {"p2d_same": [traced([0.1, 0.2])], "d2p_same": [traced([0.1, 0.2], roles=["last prompt", "whole subject"])]},
    ],
)
def test_there_are_no_peaks_unless_both_directions_were_traced(study):
    assert layers.peaks(study) == {}


def test_peaks_are_read_from_their_file_and_absent_without_one(tmp_path):
    (tmp_path / "peaks.json").write_text(json.dumps(PEAKS))
    assert layers.read(tmp_path / "peaks.json") == PEAKS
    assert layers.read([]) == {}


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
