"""The page that stands alone: one HTML file that asks nothing of the network."""

import base64
import hashlib
from datetime import date
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from . import bibliography, explorer, markdown, post

MOST_BYTES = 3_000_000
MOST_BYTES_WITH_LAB = 8_000_000
DATA = "<!-- the data of the explorer -->"  # where they go, once the size of all else is known


def policy(script, *, workers=False):
    """What a browser lets the page do: its own style, its own images, this one script, no request at all.

    `workers` may be made from blobs, which that script alone can do, and are bound by the same policy.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
        + ("; worker-src blob:" if workers else "")
    )


def page(template, document, material, *, data, style, script, lab=None):
    """The HTML of a `post.Document`; `style` and `script` are the texts of its style and script.

    The explorer shows as many people of its `data` as leave the page within `MOST_BYTES`. A page with a `lab` (of
    `lab.build`) has no explorer.
    """
    reader = markdown.parser(markdown.mathml)
    appendices = [post.fold(post.Page.details, name, part) for name, part in document.appendices]
    contents = markdown.contents(reader.parse(document.body))
    contents += [("Appendices", [name for name, _ in document.appendices])] if appendices else []
    references = bibliography.references(document.labels.cited, material.entries)
    contents += [("References", [])] if references else []
    environment = Environment(
        loader=FileSystemLoader(Path(template).parent),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["slug"] = markdown.slug
    day = date.fromisoformat(material.paper["date"])
    text = environment.get_template(Path(template).name).render(
        paper=material.paper,
        day=f"{day.day} {day:%B %Y}",
        origin=material.origin,
        policy=policy(script, workers=lab is not None),
        contents=contents,
        opening=_render_markdown(reader, document.opening),
        tldr=[Markup(reader.renderInline(point)) for point in document.tldr],
        body=_render_markdown(reader, document.body),
        appendices=_render_markdown(reader, "\n\n".join(appendices)),
        references=references,
        style=Markup(style),
        script=Markup(script),
        lab=lab and Markup(explorer.embed({key: value for key, value in lab.items() if key != "weights"})),
        weights={name: Markup(text) for name, text in (lab or {"weights": {}})["weights"].items()},
    )
    before, after = text.split(DATA)
    room = MOST_BYTES - len(text.encode())
    return before + explorer.embed(explorer.shrink(data, room)) + after


def _render_markdown(reader, part):
    """The HTML of Markdown whose headings have anchors."""
    tokens = reader.parse(part)
    for token, _, name in markdown.headings(tokens):
        token.attrSet("id", markdown.slug(name))
    return Markup(reader.renderer.render(tokens, reader.options, {}))
