"""The post: one template, written as Markdown for al-folio or as the body of the page that stands alone."""

import base64
import functools
import traceback
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import NamedTuple

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError, TemplateSyntaxError
from markupsafe import Markup

from ..common.errors import UserError
from ..data.facts import GROUPS
from ..models.families import FAMILIES
from ..storage.evidence import ABOUT
from ..tracing.vocabulary import CORRUPTIONS, KINDS
from . import bibliography, markdown, phrases, tables, verdicts

# The words that templates share with the library.
WORDS = {"ABOUT": ABOUT, "CORRUPTIONS": CORRUPTIONS, "FAMILIES": FAMILIES, "GROUPS": GROUPS, "KINDS": KINDS}
DIGITS = 12  # of a hash that are shown
ASSETS = {"figures": "img", "tables": "csv"}  # folders of an al-folio site
STYLES = """\
table { margin: 1.5rem auto; border-collapse: collapse; width: 100%; font-size: 0.9rem; }
.table-block figcaption { margin-bottom: 0.5rem; }
table th, table td { border-bottom: 1px solid var(--global-divider-color); padding: 0.35rem 0.5rem; text-align: left; }
table td { font-variant-numeric: tabular-nums; }
.table-scroll { overflow-x: auto; }
figure img { width: 100%; background: #fff; border-radius: 4px; }
.made { font-size: 0.7rem; line-height: 1.3; opacity: 0.65; margin-top: 0.25rem; }
"""


class _Environment(Environment):
    """Jinja, where `numbers.clear` is a number of that name and not a method of dictionaries."""

    def getattr(self, obj, attribute):
        return obj[attribute] if isinstance(obj, dict) and attribute in obj else super().getattr(obj, attribute)


@functools.cache  # a template takes longer to compile than to fill, and each is filled four times
def environment(folder):
    """What renders the templates of a folder: all that they print is escaped, what is missing is an error."""
    made = _Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        autoescape=True,
        finalize=phrases.printed,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= phrases.FILTERS
    made.globals |= verdicts.FUNCTIONS | WORDS
    return made


class Material(NamedTuple):
    """What the post is made from."""

    numbers: dict  # nested, as the template names them
    paper: dict  # title, subtitle, author, …, from the configuration
    figures: dict  # {name: SVG file}
    alternatives: dict  # {name: what the figure shows, in words}
    entries: dict  # of the bibliography
    origin: object  # provenance.Origin


@dataclass
class Labels:
    """What a text shows and cites, in its order."""

    figures: list = field(default_factory=list)
    tables: list = field(default_factory=list)
    cited: list = field(default_factory=list)
    evidence: list = field(default_factory=list)  # names of files that a claim rests on


class AlFolio:
    """Markdown for an al-folio site with the distill layout: kramdown, Liquid, MathJax, d-cite."""

    name = "al-folio"

    def __init__(self, paper):
        self.slug = paper["slug"]
        self.reader = markdown.parser(markdown.mathjax)

    def cite(self, keys, labels):
        return f'<d-cite key="{",".join(keys)}"></d-cite>'

    def source(self, name, file):
        return self.link(f"figures/{name}.svg")

    def link(self, name):
        """Where a file of the results is on the site: figures and the tables that claims rest on are its assets."""
        kind, file = name.split("/")
        return "{{ '" + f"/assets/{ASSETS[kind]}/{self.slug}/{file}" + "' | relative_url }}"

    def picture(self, image):
        return image


class Page:
    """The body of a page that stands alone: every image within it, references at its end."""

    name = "page"

    def __init__(self, paper):
        self.reader = markdown.parser(markdown.mathml)

    def cite(self, keys, labels):
        order = list(dict.fromkeys(labels.cited))
        links = (f'<a href="#ref-{phrases.attribute(key)}">{order.index(key) + 1}</a>' for key in keys)
        return f'<span class="cite">&#91;{", ".join(links)}&#93;</span>'

    def source(self, name, file):
        return "data:image/svg+xml;base64," + base64.b64encode(Path(file).read_bytes()).decode()

    def link(self, name):
        """Where a file of the results is, from the page's own place among them."""
        return f"../{name}"

    def picture(self, image):
        # On a phone a figure scrolls within its frame; keys scroll what has the focus.
        return f'<div class="picture" tabindex="0">{image}</div>'


class Writer:
    """The functions that the template calls."""

    def __init__(self, medium, material, known=None):
        self.medium, self.material = medium, material
        self.labels, self.known = Labels(), known

    def cite(self, *keys):
        """Citations of works by their keys."""
        self.labels.cited += keys
        return Markup(self.medium.cite(keys, self.known or self.labels))

    def see(self, kind, name, run=None):
        """A link to a figure or a table, which may come later in the text."""
        name = self.label(name, run)
        shown = {"figure": "Figure", "table": "Table"}[kind]
        return Markup(f"[{shown} {self._number(kind, name)}](#{kind}-{markdown.slug(name)})")

    def figure(self, name, run=None, *, caller):
        """A figure with its caption, the text of the call block; of a `run` kept with the paper, if one is given."""
        name = self.label(name, run)
        if name not in self.material.figures:
            raise UserError(f"figure {name} is used but not produced; produced: {', '.join(self.material.figures)}")
        if name in self.labels.figures:
            raise UserError(f"figure {name} is used twice")
        self.labels.figures.append(name)
        image = self.medium.source(name, self.material.figures[name])
        alternative = phrases.attribute(self.material.alternatives[name])
        return self._block(
            f'<figure id="figure-{markdown.slug(name)}">',
            self.medium.picture(f'<img src="{image}" alt="{alternative}">'),
            f"<figcaption><strong>Figure {self._number('figure', name)}.</strong> {self._caption(caller)}</figcaption>",
            self._made(f"figures/{name}.svg") if run is None else self._kept(run),
            "</figure>",
        )

    def table(self, name, run=None, *, caller):
        """A table with its caption, the text of the call block; of a `run` kept with the paper, if one is given."""
        table = self._rows(name, run)
        made = self._made(*table.sources) if run is None else self._kept(run)
        return self._table(self.label(name, run), tables.html(table), made, caller)

    def questions(self, asked, *, caller):
        """The table of questions, answers and evidence; a claim that rests on what is not there stops the post."""
        body = []
        for one in asked:
            if one["answer"]:
                answer = Markup(self.medium.reader.renderInline(str(one["answer"]).strip()))
                carries = [self._evidence(one["name"], f"figures/{name}.svg", name) for name in one["figures"]]
                carries += [self._evidence(one["name"], f"tables/{name}.csv") for name in one["tables"]]
                number = f"Objective {one['objective']}: " if "objective" in one else ""
                name = Markup(f"<strong>{number}{phrases.text(one['name'])}.</strong> {phrases.text(one['answer_type'])}")
                body.append([name, answer, Markup("<br>").join(carries)])
        head = [[tables.Cell(name) for name in ("Question", "Answer", "Evidence")]]
        return self._table("questions", tables.html(tables.Table(head, body, ()), "questions"), None, caller)

    def _evidence(self, claim, file, figure=None):
        origin = self.material.origin
        if file not in origin.hashes:
            raise UserError(f"{claim}: the answer rests on {file}, which this study does not make")
        self.labels.evidence.append(file)
        seen = ""
        if figure:
            seen = f'<a href="#figure-{markdown.slug(figure)}">Figure {self._number("figure", figure)}</a>: '
        link = f'<a href="{self.medium.link(file)}">{phrases.attribute(Path(file).name)}</a>'
        about = phrases.attribute(f"rule {origin.makers[file][0]}, {origin.hashes[file][:DIGITS]}")
        return Markup(f"{seen}{link} <small>{about}</small>")

    def _table(self, name, table, made, caller):
        if name in self.labels.tables:
            raise UserError(f"table {name} is used twice")
        self.labels.tables.append(name)
        # The caption is not the table's own: it should not scroll with it.
        return self._block(
            f'<figure class="table-block" id="table-{markdown.slug(name)}">',
            f"<figcaption><strong>Table {self._number('table', name)}.</strong> {self._caption(caller)}</figcaption>",
            f'<div class="table-scroll" tabindex="0">\n{table}\n</div>',
            made,
            "</figure>",
        )

    def label(self, name, run):
        """What a figure or a table is called: those of a `run` kept with the paper begin with its folder."""
        return f"{run['folder']}_{name}" if run else name

    def produced(self, name):
        """Whether a figure that not every study makes is there."""
        return name in self.material.figures

    def filled(self, name):
        """Whether a table has rows; few facts may leave one without."""
        return bool(self._rows(name).body)

    def _rows(self, name, run=None):
        numbers = self.material.numbers
        return tables.TABLES[name](run | {"published": numbers["published"]} if run else numbers)

    def _number(self, kind, name):
        if self.known is None:
            return 0
        places = self.known.figures if kind == "figure" else self.known.tables
        if name not in places:
            raise UserError(f"the text points at {kind} {name}, which it does not show")
        return places.index(name) + 1

    def _caption(self, caller):
        return self.medium.reader.renderInline(" ".join(str(caller()).split()))

    def _made(self, *files):
        return f'<p class="made">{phrases.attribute(self.material.origin.of(*files))}</p>'

    def _kept(self, run):
        made = run["made"]
        parts = (f"kept in paper/reference/{run['folder']}", made["study"], f"configuration {made['configuration']}")
        parts += (f"commit {made['commit']}", f"made {made['date']}")
        return f'<p class="made">{phrases.attribute(" · ".join(parts))}</p>'

    def _block(self, *lines):
        # A blank line would end the block of raw HTML.
        return Markup("\n\n" + "\n".join(line for line in lines if line) + "\n\n")


def write(template, medium, material, bibliography_file):
    """The Markdown of `template`, a file, for one medium; and what it shows and cites.

    It is rendered twice: the first time tells the numbers of figures, tables and works that the text refers to.
    """
    draft = _render(template, Writer(medium, material))[1]
    bibliography.check(draft.cited, material.entries, bibliography_file)
    body, labels = _render(template, Writer(medium, material, draft))
    if unused := [name for name in material.figures if name not in labels.figures]:
        raise UserError(f"{template}: figure {unused[0]} is produced but not used")
    markdown.check_headings(medium.reader.parse(body))
    return body, labels


def _render(template, writer):
    path = Path(template)
    templates = environment(path.parent)
    names = ("cite", "see", "figure", "table", "questions", "produced", "filled")
    functions = {name: getattr(writer, name) for name in names}

    def tell(run):
        # Nothing but the run's own numbers: what it lacks is a mistake, not the study's.
        others = {"published": writer.material.numbers["published"], "run": run}
        return Markup(templates.get_template("kept.md.j2").render(run | functions | others))

    context = writer.material.numbers | functions
    context |= {"paper": writer.material.paper, "medium": writer.medium.name, "tell": tell}
    context["commit"] = writer.material.origin.commit
    try:
        return templates.get_template(path.name).render(context), writer.labels
    except TemplateSyntaxError as error:
        raise UserError(f"{template}:{error.lineno}: {error.message}") from None
    except (TemplateError, TypeError, KeyError, ValueError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame for frame in frames if Path(frame.filename).parent == path.parent]
        if not lines:
            raise
        raise UserError(f"{lines[-1].filename}:{lines[-1].lineno}: {error}") from error


class _Block(str):
    """Text that YAML writes line by line."""


class _Dumper(yaml.SafeDumper):
    """Plain YAML, and blocks of text."""


_Dumper.add_representer(_Block, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|"))


def al_folio(body, paper):
    """The whole Markdown file: front matter, contents from the headings, and anchors that the contents lead to."""
    tokens = markdown.parser(markdown.mathjax).parse(body)
    lines = body.splitlines()
    for token, _, name in markdown.headings(tokens):
        lines[token.map[0]] += " {#" + markdown.slug(name) + "}"
    front = {
        "layout": "distill",
        "title": paper["title"],
        "description": paper["subtitle"],
        "tags": " ".join(paper["tags"]),
        "giscus_comments": False,
        "date": date.fromisoformat(paper["date"]),
        "featured": True,
        "authors": [{"name": paper["author"], "url": paper["url"], "affiliations": {"name": paper["affiliation"]}}],
        "bibliography": f"{paper['date']}-{paper['slug']}.bib",
        "toc": [
            {"name": name} | ({"subsections": [{"name": sub} for sub in below]} if below else {})
            for name, below in markdown.contents(tokens)
        ],
        "_styles": _Block(STYLES),
    }
    written = yaml.dump(front, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return f"---\n{written}---\n\n" + "\n".join(lines).strip() + "\n"
