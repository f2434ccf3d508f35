"""The trace of one fact, the effects computed from it, and traces on disk, a file per fact. No network is needed."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import safetensors
import safetensors.numpy

from ..common.errors import UserError
from ..common.files import atomic, write_table
from .vocabulary import ROLES, WINDOWED_KINDS, choose_corruption


class FactTrace(NamedTuple):
    """The trace of one fact at S steps, P places and L layers.

    For each score s and corruption c, `arrays` holds `s.clean` (S,) and `s.c.corrupted` (S,). For each kind k in
    `kinds[c]` and each window w, it holds `s.c.restored.k.w` (S', P, L) and, where it was measured,
    `s.c.necessary.k.w` (S', P, L), for the first S' steps (t1 is always among them), with NaN at places that were not
    restored. Places are the single positions, then all subject tokens together, then the answer positions together.
    """

    metadata: dict  # fact, template, prompt, reference, tokens, prompt_tokens, subject, answer, t1, t2
    steps: list  # t1, half way and t2, without duplicates
    roles: list  # (S, P)
    kinds: dict  # {corruption: [kind]}
    windows: list  # numbers of layers restored together; the first is the leading one
    arrays: dict

    def scores(self, corruption, kind, *, score="log_probability", reading="restored", window=None):
        """The scores (S', P, L) of runs with one site patched; None where there are none.

        `window` applies to the windowed kinds; None is the leading window.
        """
        return self.arrays.get(array_name(score, corruption, reading, kind, window or self.windows[0]))

    def comparable_score(self, corruption, kind):
        """The score in nats that compares between families, where a kind has it; else "log_probability"."""
        return next(s for s in ("sequential", "log_probability") if self.scores(corruption, kind, score=s) is not None)

    def total_effect(self, corruption, score="log_probability"):
        """Total effects (S',) of corrupting the subject: clean − corrupted."""
        corrupted = self.arrays[f"{score}.{corruption}.corrupted"].astype(float)
        return self.arrays[f"{score}.clean"][: len(corrupted)] - corrupted

    def indirect_effects(self, corruption, kind, *, score="log_probability", window=None):
        """Indirect effects (S', P, L) of restoring one site in the corrupted run: restored − corrupted."""
        restored = self.scores(corruption, kind, score=score, window=window).astype(float)
        return restored - self.arrays[f"{score}.{corruption}.corrupted"][: len(restored), None, None]

    def effects(self, kind="state", corruption=None):
        """Indirect effects (S', P, L) in nats; by the leading corruption, unless another is named."""
        corruption = corruption or choose_corruption(self.kinds)
        if kind not in self.kinds.get(corruption, ()):
            traced = ", ".join(f"{name}: {', '.join(kinds)}" for name, kinds in self.kinds.items())
            raise UserError(f"kind {kind!r} was not traced by corruption {corruption!r}; this trace has {traced}")
        return self.indirect_effects(corruption, kind)

    def necessity_effects(self, corruption, kind):
        """Effects (S', P, L) of corrupting one site in the clean run, in nats: clean − patched."""
        patched = self.scores(corruption, kind, reading="necessary").astype(float)
        return self.arrays["log_probability.clean"][: len(patched), None, None] - patched

    def average_by_role(self, values):
        """Means (S', roles, L) of `values` (S', P, L) over the places of each role; NaN where a step has none."""
        member = np.array(self.roles[: len(values)])[:, None] == np.array(ROLES)[:, None]  # (S', roles, P)
        member = member[..., None] & ~np.isnan(values)[:, None]
        with np.errstate(invalid="ignore"):
            return np.where(member, values[:, None], 0).sum(2) / member.sum(2)

    def stages(self):
        """The stage of each step; a step that reveals the whole answer is t1."""
        named = {self.metadata["t2"]: "t2", self.metadata["t1"]: "t1"}
        return [named.get(step, "between") for step in self.steps]


def collect_t1_effects(traces, corruption, kind):
    """Indirect effects at t1 (facts, roles, L) in nats, and the `traces` that have this corruption and kind."""
    traces = [trace for trace in traces if kind in trace.kinds.get(corruption, ())]
    effects = [trace.average_by_role(trace.indirect_effects(corruption, kind))[0] for trace in traces]
    return np.array(effects), traces


def array_name(score, corruption, reading, kind, window):
    """The key of an array; kinds without a window have window 1."""
    return f"{score}.{corruption}.{reading}.{kind}.{window if kind in WINDOWED_KINDS else 1}"


def write(traces, tables, folder):
    """Write a file per fact, and `tables` of measurements ({name: table}), into `folder`; remove earlier traces."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.safetensors"):
        old.unlink()
    for trace in traces:
        header = {name: getattr(trace, name) for name in ("metadata", "steps", "roles", "kinds", "windows")}
        with atomic(folder / f"{trace.metadata['fact']}.safetensors") as file:
            file.write(safetensors.numpy.save(trace.arrays, {"trace": json.dumps(header, ensure_ascii=False)}))
    for name, table in tables.items():
        write_table(table, folder / f"{name}.csv")


def read(folder):
    """Read the traces in a folder, sorted by fact id."""
    return [_read_trace(file) for file in sorted(Path(folder).glob("*.safetensors"))]


def read_table(folder, name):
    """Read one of the tables in a folder of traces."""
    return pd.read_csv(Path(folder) / f"{name}.csv")


def _read_trace(path):
    with safetensors.safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["trace"])
        return FactTrace(**header, arrays={name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
