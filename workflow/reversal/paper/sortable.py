"""A table of the results as a page whose columns sort: for Snakemake's report, which would only offer the CSV."""

from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

MOST_ROWS = 1000


def page(template, file):
    """The HTML of a CSV `file`, as a `template` has it: its first rows, numbers to four digits."""
    table = pd.read_csv(file, low_memory=False)
    shown = table.head(MOST_ROWS)
    about = (
        f"All {len(table):,} rows." if len(shown) == len(table) else f"The first {MOST_ROWS:,} of {len(table):,} rows."
    )
    environment = Environment(
        loader=FileSystemLoader(Path(template).parent), undefined=StrictUndefined, autoescape=True, trim_blocks=True
    )
    return environment.get_template(Path(template).name).render(
        name=Path(file).stem,
        about=f"{about} The file: tables/{Path(file).name}",
        columns=list(table.columns),
        rows=[[_cell(value) for value in row] for row in shown.itertuples(index=False)],
    )


def _cell(value):
    return "" if pd.isna(value) else f"{value:.4g}" if isinstance(value, float) else str(value)
