"""The page that stands alone, one HTML file that asks nothing of the network; and tables as pages that sort."""

import base64
import hashlib
from datetime import date
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from . import bibliography, markdown, post

MOST_BYTES = 8_000_000  # of a page with the lab
MOST_ROWS = 1000  # of a table that sorts


def policy(script):
    """What a browser lets the page do: its own style, its own images, this one script, no request at all.

    Workers may be made from blobs, which that script alone can do, and are bound by the same policy.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; worker-src blob:"
    return f"default-src 'none'; {allowed}; base-uri 'none'"


def page(template, document, material, *, data, style, script):
    """The HTML of a `post.Document`; `style` and `script` are the texts of its style and script.

    `data` is {id: text} of what the script reads: text that can stand within a `<script>`.
    """
    reader = markdown.parser(markdown.mathml)
    appendices = [post.fold(post.Page.details, name, part) for name, part in document.appendices]
    contents = markdown.contents(reader.parse(document.body))
    contents += [("Appendices", [name for name, _ in document.appendices])] if appendices else []
    references = bibliography.references(document.cited, material.entries)
    contents += [("References", [])] if references else []
    day = date.fromisoformat(material.paper["date"])
    return _fill(
        template,
        paper=material.paper,
        slug=markdown.slug,
        day=f"{day.day} {day:%B %Y}",
        origin=material.origin,
        policy=policy(script),
        contents=contents,
        opening=Markup(reader.render(document.opening)),
        tldr=[Markup(reader.renderInline(point)) for point in document.tldr],
        body=Markup(reader.render(document.body)),
        appendices=Markup(reader.render("\n\n".join(appendices))),
        references=references,
        data={name: Markup(text) for name, text in data.items()},
        style=Markup(style),
        script=Markup(script),
    )


def sortable(template, file):
    """The HTML of a CSV `file` whose columns sort, for Snakemake's report: its first rows, numbers to four digits."""
    table = pd.read_csv(file, low_memory=False)
    rows = table.head(MOST_ROWS).itertuples(index=False)
    shown = f"The first {MOST_ROWS:,} of" if len(table) > MOST_ROWS else "All"
    return _fill(
        template,
        name=Path(file).stem,
        about=f"{shown} {len(table):,} rows. The file: tables/{Path(file).name}",
        columns=list(table.columns),
        rows=[[_show_cell(value) for value in row] for row in rows],
    )


def _show_cell(value):
    return "" if pd.isna(value) else f"{value:.4g}" if isinstance(value, float) else str(value)


def _fill(template, **values):
    environment = Environment(
        loader=FileSystemLoader(Path(template).parent),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(Path(template).name).render(values)
