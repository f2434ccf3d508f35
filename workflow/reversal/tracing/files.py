"""Traces on disk, a file per fact. No network is needed."""

import json
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import safetensors
import safetensors.numpy

from ..common.files import atomic, write_table
from .vocabulary import WINDOWED

OUTCOMES, TIME = "outcomes.csv", "time.csv"


class FactTrace(NamedTuple):
    """The trace of one fact at S steps, P places and L layers.

    For each score s and corruption c, `arrays` holds `s.clean` (S,) and `s.c.corrupted` (S,). For each kind k of
    `kinds[c]` and each window w, they hold `s.c.restored.k.w` (S', P, L) and, where it was asked, `s.c.necessary.k.w`
    (S', P, L): of the first S' steps, t1 among them; NaN at places that were not restored. Places are the positions,
    one by one, then the whole subject and the whole answer.
    """

    about: dict  # fact, template, prompt, reference, tokens, subject, answer, t1, t2
    steps: list  # t1, half way and t2, as far as they differ
    roles: list  # (S, P)
    kinds: dict  # {corruption: [kind]}
    windows: list  # of layers restored together; the first leads
    arrays: dict

    def runs(self, corruption, kind, *, score="log_probability", reading="restored", window=None):
        """The scores (S', P, L) of runs with one site changed; None where there are none.

        The window of kinds that are restored over one is the leading one unless another is asked for.
        """
        return self.arrays.get(array_name(score, corruption, reading, kind, window or self.windows[0]))

    def effects(self, corruption, kind, *, score="log_probability", window=None):
        """Indirect effects (S', P, L): restored − corrupted."""
        restored = self.runs(corruption, kind, score=score, window=window).astype(float)
        return restored - self.arrays[f"{score}.{corruption}.corrupted"][: len(restored), None, None]

    def stages(self):
        """The stage of each step; a step that reveals the whole answer is t1."""
        named = {self.about["t2"]: "t2", self.about["t1"]: "t1"}
        return [named.get(step, "between") for step in self.steps]


def array_name(score, corruption, reading, kind, window):
    """What an array is called; where no window is restored, the window is 1."""
    return f"{score}.{corruption}.{reading}.{kind}.{window if kind in WINDOWED else 1}"


def write(traces, outcomes, needed, folder):
    """Write a file per fact, the outcomes and what was asked about time into `folder`; earlier traces are removed."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.safetensors"):
        old.unlink()
    for trace in traces:
        described = {name: getattr(trace, name) for name in ("about", "steps", "roles", "kinds", "windows")}
        with atomic(folder / f"{trace.about['fact']}.safetensors") as file:
            file.write(safetensors.numpy.save(trace.arrays, {"trace": json.dumps(described, ensure_ascii=False)}))
    write_table(outcomes, folder / OUTCOMES)
    write_table(needed, folder / TIME)


def read(folder):
    """The traces of a folder that `write` left, facts in the order of their ids."""
    return [_read(file) for file in sorted(Path(folder).glob("*.safetensors"))]


def read_outcomes(folder):
    """The table of outcomes that `write` left."""
    return pd.read_csv(Path(folder) / OUTCOMES)


def read_time(folder):
    """The table of what was asked about time that `write` left."""
    return pd.read_csv(Path(folder) / TIME)


def _read(path):
    with safetensors.safe_open(path, framework="numpy") as file:
        described = json.loads(file.metadata()["trace"])
        return FactTrace(**described, arrays={name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
