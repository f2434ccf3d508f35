"""Quantities: numbers that the paper takes from tables, each named by run, table, rows and column.

    {run: seeds, table: step_scaling, where: {model: mdm, split: p2d_reverse, steps: max}, value: accuracy}

One mechanism serves the numbers in the prose (paper/numbers.yaml) and the claims (paper/claims.yaml). The rows that
`where` selects may differ in their seed alone; they are pooled into one estimate with its interval.
"""

import functools
import math
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import yaml

from ..common.contrasts import SHARES, pool_seeds
from ..common.errors import UserError
from ..common.intervals import Interval
from ..figures.read import read_table

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C it is ten times as fast
MINUS = "−"
UNKNOWN = "–"
EXTREMES = ("max", "min", "first")
COUNTED = ("accuracy", "preferred")  # columns of shares of answers, which cannot pass 0% and 100%


class Quantity(NamedTuple):
    """Which number of which table."""

    table: str
    value: str  # its column
    where: dict = {}
    run: str = "this"  # or a folder of paper/reference
    format: str = "number"
    digits: int | None = None
    pool: str = "mean"  # over seeds; or min, max, which have no interval


class Run:
    """The tables of one run, {name: file}; `models` gives the run's names for the models `mdm` and `ar`."""

    def __init__(self, files, models=None):
        self.files, self.models = files, models or {}
        self.table = functools.cache(self._table)

    def _table(self, name):
        """A table, or None where the run has none of this name."""
        return read_table(self.files[name]) if name in self.files else None


def group_runs(files):
    """The runs, by name, that tables paper/reference/<run>/<table>.csv belong to."""
    tables = {}
    for file in map(Path, files):
        tables.setdefault(file.parent.name, {})[file.stem] = file
    return {name: Run(own) for name, own in tables.items()}


def read_yaml(path):
    """What a YAML file holds; an error names its line."""
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), LOADER)  # noqa: S506
    except yaml.YAMLError as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None


def parse(entry, source):
    """The `Quantity` of a mapping; `source` names the mapping in errors."""
    for key in ("table", "value"):
        if key not in entry:
            raise UserError(f"{source}: {key} is missing")
    if unknown := sorted(set(entry) - set(Quantity._fields)):
        raise UserError(f"{source}: unknown key {unknown[0]}; known: {', '.join(Quantity._fields)}")
    quantity = Quantity(**entry)
    if quantity.format not in FORMATS:
        raise UserError(f"{source}: format is {quantity.format}; known: {', '.join(FORMATS)}")
    if quantity.pool not in ("mean", "min", "max"):
        raise UserError(f"{source}: pool is {quantity.pool}; known: mean, min, max")
    return quantity


def read_numbers(path):
    """The quantities of a file like paper/numbers.yaml, by name; those of a group differ in their rows alone."""
    quantities = {}
    for group in read_yaml(path):
        common = {key: value for key, value in group.items() if key != "numbers"}
        for name, where in group["numbers"].items():
            quantities[name] = parse(common | {"where": where}, f"{path}: {name}")
    return quantities


def measure_all(quantities, runs, source):
    """{name: (Quantity, Interval)} of quantities in the runs that they name."""
    measured = {}
    for name, quantity in quantities.items():
        if quantity.run not in runs:
            raise UserError(f"{source}: {name}: run is {quantity.run}; known: {', '.join(runs)}")
        estimate = measure(quantity, runs[quantity.run], f"{source}: {name}")
        if estimate is None:
            missing = f"no row of {quantity.table}.csv of run {quantity.run} meets {quantity.where}"
            raise UserError(f"{source}: {name}: {missing}")
        measured[name] = quantity, estimate
    return measured


def measure(quantity, run, source):
    """The `Interval` of a quantity in a run; None where the run has no such table or no such rows."""
    table = run.table(quantity.table)
    if table is None or table.empty:
        return None
    source = f"{source}: {run.files[quantity.table]}"
    return pool_rows(select(table, quantity.where, source, run.models), quantity, source)


def pool_rows(rows, quantity, source):
    """The `Interval` of a quantity in the `rows` that it is about; None where none of them has a value."""
    require_column(rows, quantity.value, source)
    columns = [quantity.value, *_interval_columns(quantity.value, rows)]
    values = rows[quantity.value].astype(float)
    rows, values = rows[values.notna()], values[values.notna()]
    if rows.empty:
        return None
    if quantity.pool != "mean":
        return Interval(float(getattr(values, quantity.pool)()), math.nan, math.nan)
    _require_one_row_per_seed(rows, columns, source)
    ends = [rows[column].astype(float) if column else pd.Series(math.nan, rows.index) for column in columns[1:]]
    limits = SHARES if quantity.value in COUNTED else (-math.inf, math.inf)
    return pool_seeds(values, *ends, limits)


def select(table, where, source, models):
    """The rows of `table` that meet all conditions of `where`, extremes last: among the rows that meet the others."""
    chosen = pd.Series(True, table.index)
    for column, wanted in where.items():
        require_column(table, column, source)
        if not _is_extreme(wanted):
            wanted = wanted if isinstance(wanted, list) else [wanted]
            names = models if column == "model" else {}
            chosen &= _matches(table[column], [names.get(one, one) for one in wanted])
    rows = table[chosen]
    for column, wanted in where.items():
        rows = _extreme(rows, column, wanted) if _is_extreme(wanted) else rows
    return rows


def _is_extreme(wanted):
    return isinstance(wanted, str) and wanted in EXTREMES


def _extreme(rows, column, wanted):
    values = rows[column].dropna()
    if values.empty:
        return rows
    return rows[rows[column] == (values.iloc[0] if wanted == "first" else getattr(values, wanted)())]


def _matches(values, wanted):
    """Whether each of a column's `values` is one of `wanted`; None is an empty field, "any" any number."""
    if wanted == ["any"]:  # the seed of a base is the text "base"
        return pd.to_numeric(values, errors="coerce").notna()
    known = [one for one in wanted if one is not None]
    found = values.isin(known)
    if not found.any():  # 0 also stands for the text "0", in a column that has other texts
        found = values.astype(str).isin(list(map(str, known)))
    return found | values.isna() if None in wanted else found & values.notna()


def _interval_columns(value, table):
    """The columns with the interval's ends: the next two, named like the value or ci_low and ci_high; or two Nones."""
    following = list(table)[list(table).index(value) + 1 :][:2]
    return following if following in ([f"{name}_low", f"{name}_high"] for name in (value, "ci")) else [None, None]


def require_column(table, column, source):
    if column not in table:
        raise UserError(f"{source} has no column {column}; it has {', '.join(table.columns)}")


def _require_one_row_per_seed(rows, measured, source):
    if len(rows) == 1 or ("seed" in rows and rows.seed.is_unique):
        return
    keys = [column for column in rows if column not in (*measured, "seed") and not _is_measurement(rows[column])]
    differ = [column for column in keys if rows[column].nunique(dropna=False) > 1] or ["seed"]
    raise UserError(
        f"{source}: {len(rows)} rows meet the conditions; they differ in {', '.join(differ)}: name one in where"
    )


def _is_measurement(values):
    return values.dtype.kind == "f" and not (values.dropna() % 1 == 0).all()


def number(value, digits=2):
    """A number with `digits` after the point; its minus is a minus, and what rounds to 0 has none."""
    if math.isnan(value):
        return UNKNOWN
    rounded = f"{value:,.{digits}f}"
    return rounded.replace("-", "" if float(rounded.replace(",", "")) == 0 else MINUS)


def percent(share, digits=0):
    """A share in percent; what is not quite none or all never looks so."""
    if math.isnan(share):
        return UNKNOWN
    smallest = 10.0**-digits
    if 0 < 100 * share <= smallest / 2:
        return f"< {smallest:.{digits}f}%"
    if 100 - smallest / 2 <= 100 * share < 100:
        return f"> {100 - smallest:.{digits}f}%"
    return f"{number(100 * share, digits)}%"


def points(difference, digits=0):
    """A difference of shares in percentage points, with its sign."""
    shown = number(100 * difference, digits)
    shown = f"+{shown}" if difference > 0 and shown.strip("0.,") else shown
    return f"{shown} {'point' if shown in ('+1', f'{MINUS}1') else 'points'}"


# {format: (how an estimate is printed, digits after the point, what an interval's ends are multiplied by)}
FORMATS = {
    "percent": (percent, 0, 100),
    "points": (points, 0, 100),
    "nats": (number, 0, 1),
    "number": (number, 2, 1),
}


def show(value, quantity):
    """A value as the format of its quantity prints it."""
    printed, usual, _ = FORMATS[quantity.format]
    return printed(value, usual if quantity.digits is None else quantity.digits)


def show_interval(estimate, quantity):
    """The interval in brackets, "[86, 100]"; "" where it is not known."""
    _, usual, scale = FORMATS[quantity.format]
    if math.isnan(estimate.low) or math.isnan(estimate.high):
        return ""
    digits = usual if quantity.digits is None else quantity.digits
    return f"[{number(scale * estimate.low, digits)}, {number(scale * estimate.high, digits)}]"


def show_estimate(estimate, quantity):
    """An estimate with its interval: "98% [86, 100]"."""
    return f"{show(estimate.estimate, quantity)} {show_interval(estimate, quantity)}".strip()


def describe(quantity, run):
    """Where a quantity comes from, in words: "run seeds: step_scaling.csv, model mdm, split p2d_reverse, steps max"."""
    rows = ", ".join(f"{column} {_condition(wanted)}" for column, wanted in quantity.where.items())
    return f"run {run}: {quantity.table}.csv, {rows or 'all rows'}, column {quantity.value}"


def _condition(wanted):
    if isinstance(wanted, list):
        return " or ".join(map(_condition, wanted))
    return "empty" if wanted is None else str(wanted)
