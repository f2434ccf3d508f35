"""The post: Markdown by hand, with numbers, claims, figures, tables and citations filled in.

The text is plain Markdown with Jinja expressions and no other Jinja: no sentence depends on a number. It is rendered
for two media, Markdown for an al-folio site and the body of the page that stands alone.

    {{ names_reverse }}              a number of paper/numbers.yaml
    {{ claim("names-reverse") }}     what this run found about a claim of paper/claims.yaml
    {{ figure("step_scaling") }}     a figure with its caption; {{ see("step_scaling") }} links to it
    {{ table("costs", "Caption.") }} a table, or some of its rows and columns
    {{ cite("berglund2023reversal") }}
    {{ claims() }}, {{ settings() }}, {{ explorer() }}
"""

import math
import re
import textwrap
import traceback
from datetime import date
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import yaml
from jinja2 import Environment, StrictUndefined, TemplateError, TemplateSyntaxError, meta
from markupsafe import Markup

from ..common.errors import UserError
from ..figures.registry import FIGURES
from . import markdown, numbers
from .claims import NOT_MEASURED
from .markdown import attribute, text

FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.S)
APPENDIX = re.compile(r"^## (Appendix\b.*)$", re.M)
NARROW = 360  # points
RUNS = {"this": "this run", "seeds": "five seeds", "published": "published data"}  # what readers call them
CLAIMS = "Every claim in every run: the estimate with its 95% interval, and whether the claim holds."
SEE = "\ue000"  # around a name that is to become a link
ASSETS = {"figures": "img", "tables": "csv"}  # folders of an al-folio site
STYLES = """\
table { margin: 1.5rem auto; border-collapse: collapse; width: 100%; font-size: 0.9rem; }
.table-block figcaption { margin-bottom: 0.5rem; }
table th, table td { border-bottom: 1px solid var(--global-divider-color); padding: 0.35rem 0.5rem; text-align: left; }
table td { font-variant-numeric: tabular-nums; }
.table-scroll { overflow-x: auto; }
figure img { width: 100%; background: #fff; border-radius: 4px; }
.narrow img { max-width: 30rem; display: block; margin: 0 auto; }
.source, .claim { font-size: 0.75rem; line-height: 1.3; opacity: 0.75; }
.claim.fails { color: #c22; opacity: 1; font-weight: 600; }
"""


class Source(NamedTuple):
    """A Markdown file of the paper: its path, its front matter and its text, which begins on its own line."""

    path: str
    front: dict
    text: str


class Figure(NamedTuple):
    """A figure that the text can show."""

    file: str  # SVG
    caption: str  # Markdown
    alternative: str  # what it shows, in words


class Material(NamedTuple):
    """What the article is made from."""

    sources: list  # the article, then its appendices: [Source]
    paper: dict  # title, subtitle, author, date, slug, …
    runs: dict  # {name: numbers.Run}, this run among them
    numbers: dict  # {name: (Quantity, Interval)}
    claims: list  # [Claim]
    verdicts: dict  # {(claim, run): (Interval, verdict)}
    figures: dict  # {name: Figure}
    entries: dict  # of the bibliography
    origin: object  # provenance.Provenance
    settings: dict  # this run's configuration


class Document(NamedTuple):
    """A rendered article."""

    opening: str  # Markdown: what stands before the first heading
    tldr: list  # Markdown, a string a bullet
    body: str
    appendices: list  # [(name, Markdown)]
    cited: list  # keys of works, in their order
    claims: list  # the ids of those that it states
    files: list  # of figures and tables that it links to


def read_source(path):
    """A Markdown file with its front matter."""
    whole = Path(path).read_text(encoding="utf-8")
    front = FRONT.match(whole)
    return Source(
        str(path),
        (yaml.safe_load(front[1]) or {}) if front else {},
        "\n" * front[0].count("\n") + whole[front.end() :] if front else whole,  # lines keep their numbers
    )


class AlFolio:
    """Markdown for an al-folio site with the distill layout: kramdown, Liquid, MathJax, d-cite."""

    details = '<details markdown="1">'
    explorer = "The page that stands alone (`index.html`) has the lab, or an explorer of recorded answers, here."

    def __init__(self, slug):
        self.slug = slug
        self.reader = markdown.parser(markdown.mathjax)

    def cite(self, keys, cited):
        return f'<d-cite key="{",".join(keys)}"></d-cite>'

    def image(self, name, file):
        return self.link(f"figures/{name}.svg")

    def link(self, file):
        """Where a file of the results is on the site: figures and tables that the text shows are its assets."""
        kind, name = file.split("/")
        return "{{ '" + f"/assets/{ASSETS[kind]}/{self.slug}/{name}" + "' | relative_url }}"


class Page:
    """The body of the page that stands alone: every image within it, references at its end."""

    details = '<details class="appendix">'

    def __init__(self, explorer=""):
        self.explorer = explorer
        self.reader = markdown.parser(markdown.mathml)

    def cite(self, keys, cited):
        order = list(dict.fromkeys(cited))
        links = (f'<a href="#ref-{attribute(key)}">{order.index(key) + 1}</a>' for key in keys)
        return f'<span class="cite">&#91;{", ".join(links)}&#93;</span>'

    def image(self, name, file):
        # A sixth shorter than base64; a line end in an SVG is a space.
        return "data:image/svg+xml," + quote(" ".join(Path(file).read_text(encoding="utf-8").split()), safe=" ,;:/=()")

    def link(self, file):
        """Where a file of the results is, from the page's own place among them."""
        return f"../{file}"


class Number(Markup):
    """A number of the prose: `{{ x }}` prints the estimate, `{{ x.interval }}` its interval."""

    interval: Markup


def sourced(shown, title):
    """Text of numbers that tells where they come from: under the pointer, or with the focus of a key or a finger."""
    # Coded brackets: plain ones could become a link.
    coded = escape(shown).replace("[", "&#91;").replace("]", "&#93;")
    return Markup(f'<span class="n" tabindex="0" title="{attribute(title)}">{coded}</span>')


class Writer:
    """The functions and numbers that the text uses."""

    def __init__(self, medium, material):
        self.medium, self.material = medium, material
        self.shown = {"figure": [], "table": []}  # names, in their order
        self.cited, self.stated, self.files = [], [], []
        self.by_id = {claim.id: claim for claim in material.claims}

    def context(self):
        functions = ("claim", "figure", "see", "table", "cite", "claims", "settings", "explorer")
        return {name: getattr(self, name) for name in functions} | {
            name: self._number(*measured) for name, measured in self.material.numbers.items()
        }

    def _number(self, quantity, estimate):
        title = self.material.origin.of_quantity(quantity, quantity.run)
        number = Number(sourced(numbers.show(estimate.estimate, quantity), title))
        number.interval = sourced(numbers.show_interval(estimate, quantity), title)
        return number

    def cite(self, *keys):
        """Citations of works by their keys."""
        if unknown := [key for key in keys if key not in self.material.entries]:
            raise UserError(f"paper/references.bib has no entry {unknown[0]}")
        self.cited += keys
        return Markup(self.medium.cite(keys, self.cited))

    def claim(self, name):
        """What this run found about a claim: a quiet line, coloured where the claim fails."""
        if name not in self.by_id:
            raise UserError(f"paper/claims.yaml has no claim {name}")
        claim, (_, verdict) = self.by_id[name], self.material.verdicts[name, "this"]
        self.stated.append(name)
        title = f"{claim.says} Tested: {claim.test}. {self.material.origin.of_quantity(claim.quantity, 'this')}"
        line = f"{sourced(self._describe_verdict(claim), title)} <small>{text(claim.short)}</small>"
        return Markup(f'<p class="claim {verdict.replace(" ", "-")}" id="claim-{attribute(name)}">{line}</p>')

    def _describe_verdict(self, claim):
        """What this run says of a claim or, if it does not measure it, what the claim's first reference run says."""
        for run in ("this", *claim.runs):
            estimate, verdict = self.material.verdicts.get((claim.id, run), (None, NOT_MEASURED))
            if verdict != NOT_MEASURED:
                source = "In this run" if run == "this" else f"Reference run {run}"
                return f"{source}: {claim.show(estimate)}: {verdict}."
        return f"In this run: {NOT_MEASURED}."

    def figure(self, name):
        """A figure with its caption."""
        if name not in self.material.figures:
            raise UserError(f"figure {name} is used but not made; made: {', '.join(self.material.figures)}")
        file, caption, alternative = self.material.figures[name]
        style = "picture narrow" if is_narrow(file) else "picture"
        image = f'src="{self.medium.image(name, file)}" alt="{attribute(alternative)}"'
        content = f'<div class="{style}" tabindex="0"><img {image}></div>'
        return self._block("figure", name, content, caption, f"figures/{name}.svg")

    def table(self, name, caption, run="this", columns=None, where=None, rows=40):
        """Rows of a table with a caption: all columns, or those of {head: "column format"}; see paper/numbers.yaml."""
        if run not in self.material.runs or (found := self.material.runs[run].table(name)) is None:
            raise UserError(f"table {name} of run {run} is used but not made")
        source = f"table {name} of run {run}"
        found = numbers.select(found, where or {}, source, self.material.runs[run].models)
        heads, cells = _cells(found, columns, source)
        more = f" The first {rows} of {len(cells)} rows." if len(cells) > rows else ""
        table = html_table(heads, [[text(cell) for cell in row] for row in cells[:rows]])
        file = f"tables/{name}.csv" if run == "this" else None
        return self._block("table", name if run == "this" else f"{run}-{name}", table, caption + more, file, run)

    def claims(self):
        """The table of claims and runs."""
        if not self.material.claims:
            return Markup("This study measures none of the article's claims.")
        runs = list(dict.fromkeys(run for _, run in self.material.verdicts))
        body = []
        for claim in self.material.claims:
            rule = self.material.origin.rule(f"tables/{claim.quantity.table}.csv")
            about = f"<br><small>{claim.quantity.table}.csv, {attribute(rule)}; {attribute(claim.test)}</small>"
            says = (
                f'<a href="#claim-{claim.id}">{text(claim.says)}</a>' if claim.id in self.stated else text(claim.says)
            )
            row = [says + about]
            for run in runs:
                estimate, verdict = self.material.verdicts[claim.id, run]
                shown = "" if verdict == NOT_MEASURED else f"{text(claim.show(estimate))}<br>"
                row.append(f'<span class="verdict {verdict.replace(" ", "-")}">{shown}{verdict}</span>')
            body.append(row)
        table = html_table(["Claim", *(RUNS.get(run, run) for run in runs)], body, "wide")
        return self._block("table", "claims", table, CLAIMS, "tables/claims.csv")

    def settings(self):
        """This run's configuration as YAML."""
        written = yaml.dump(self.material.settings, sort_keys=False, allow_unicode=True, width=100)
        return Markup(f"\n\n```yaml\n{written.translate(str.maketrans('', '', '`{}'))}```\n\n")

    def explorer(self):
        """The lab or the explorer, where the medium has it."""
        return Markup(f"\n\n{self.medium.explorer}\n\n")

    def see(self, name):
        """A link to a figure or a table, which may come later in the text."""
        return Markup(f"{SEE}{name}{SEE}")  # its number is known once all is rendered

    def link(self, part):
        """A rendered part with its links to figures and tables."""

        def link(match):
            for kind, shown in self.shown.items():
                if match[1] in shown:
                    return f"[{kind.title()} {shown.index(match[1]) + 1}](#{kind}-{markdown.slug(match[1])})"
            raise UserError(f"the text points at {match[1]}, which it does not show")

        return re.sub(f"{SEE}(.*?){SEE}", link, part)

    def _block(self, kind, name, content, caption, file, run="this"):
        shown = self.shown[kind]
        if name in shown:
            raise UserError(f"{kind} {name} is used twice")
        shown.append(name)
        head = f"<strong>{kind.title()} {len(shown)}.</strong> "
        said = self.medium.reader.renderInline(" ".join(str(caption).split()))
        link = ""
        if file:
            self.files.append(file)
            link = f'<a href="{self.medium.link(file)}">{attribute(file)}</a> '
        about = attribute(self.material.origin.of(file) if file else self.material.origin.of_run(run))
        source = f'<details class="source"><summary>source</summary>{link}{about}</details>'
        parts = [content, f"<figcaption>{head}{said}</figcaption>"]
        if kind == "table":  # the caption is not the table's own: it should not scroll with it
            parts = [parts[1], f'<div class="table-scroll" tabindex="0">\n{content}\n</div>']
        lines = [f'<figure class="{kind}-block" id="{kind}-{markdown.slug(name)}">', *parts, source, "</figure>"]
        return Markup("\n\n" + "\n".join(lines) + "\n\n")  # a blank line would end the block of raw HTML


def find_figure(name):
    """The registered figure of this name; those of reference runs are named <run>_<figure>."""
    return FIGURES[name if name in FIGURES else name.partition("_")[2]]


def is_narrow(file):
    """Whether an SVG is narrow enough for a phone to show it whole."""
    width = re.search(r'<svg[^>]*? width="([\d.]+)', Path(file).read_text(encoding="utf-8"))
    return width is not None and float(width[1]) <= NARROW


def _cells(found, columns, source):
    """Heads and rows of text of a table: columns with a format have their interval, and seeds are pooled."""
    wanted = {head: spec.split() for head, spec in (columns or {name: name for name in found}).items()}
    for column, *_ in wanted.values():
        numbers.require_column(found, column, source)
    keys = [column for column, *form in wanted.values() if not form]
    if len(keys) == len(wanted):
        return list(wanted), [[_plain(value) for value in row] for row in found[keys].itertuples(index=False)]
    rows = []
    for own, group in found.groupby(keys, sort=False, dropna=False):
        plain = dict(zip(keys, own, strict=True))
        rows.append([_pool(group, *spec, source) if spec[1:] else _plain(plain[spec[0]]) for spec in wanted.values()])
    return list(wanted), rows


def _pool(rows, column, form, source):
    quantity = numbers.parse({"table": "", "value": column, "format": form}, source)
    estimate = numbers.pool_rows(rows, quantity, source)
    return numbers.UNKNOWN if estimate is None else numbers.show_estimate(estimate, quantity)


def _plain(value):
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}".replace("-", numbers.MINUS)
    return str(value)


def html_table(heads, rows, style=""):
    """A table of `heads` (text) and `rows` of cells, which are markup."""
    head = "".join(f'<th scope="col">{text(one)}</th>' for one in heads)
    body = "\n".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'
        for first, *others in rows
    )
    return f'<table class="{style}">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>'


def write(medium, material):
    """The `Document` for one medium."""
    writer = Writer(medium, material)
    context, article = writer.context(), material.sources[0]
    parts = [_fill(source.text, source.path, context) for source in material.sources]
    parts = [writer.link(part) for part in parts]
    tldr = [writer.link(_fill(point, article.path, context)) for point in article.front.get("tldr", [])]
    opening, heading, body = parts[0].partition("\n## ")
    body, appendices = heading.strip("\n") + body, []
    for part in parts[1:]:
        before, *split = APPENDIX.split(part)
        body += before
        appendices += zip(split[::2], split[1::2], strict=True)
    headings = [
        one for part in (body, *dict(appendices).values()) for one in markdown.headings(medium.reader.parse(part))
    ]
    markdown.check_anchors([*(name for _, _, name in headings), *dict(appendices)])
    return Document(opening.strip(), tldr, body, appendices, writer.cited, writer.stated, writer.files)


def require_complete(document, material):
    """Every number, every claim about a run that is there, and every work that the paper lists stands in its text."""
    texts = [*(source.text for source in material.sources), *material.sources[0].front.get("tldr", [])]
    claims = [claim.id for claim in material.claims if set(material.runs) & set(claim.runs)]
    for file, listed, used in (
        ("numbers.yaml", material.numbers, meta.find_undeclared_variables(ENVIRONMENT.parse("\n".join(texts)))),
        ("claims.yaml", claims, document.claims),
        ("references.bib", material.entries, document.cited),
    ):
        if unused := [name for name in listed if name not in used]:
            raise UserError(f"paper/{file}: no text uses {unused[0]}; use it or leave it out")


def _print(value):
    if isinstance(value, Markup | StrictUndefined):
        return value
    raise TypeError(f"{value!r} is no number of numbers.yaml, and no figure, table, claim or citation")


# Jinja with expressions alone: what is missing is an error.
ENVIRONMENT = Environment(
    undefined=StrictUndefined,
    autoescape=True,
    finalize=_print,
    comment_start_string="{##",  # {#…} is an anchor
    keep_trailing_newline=True,
)


def _fill(template, path, context):
    """A text with its expressions filled in; an error names the file and the line."""
    if block := re.search(r"\{%", template):
        line = template[: block.start()].count("\n") + 1
        raise UserError(f"{path}:{line}: only expressions are allowed, {{{{ … }}}}: no sentence depends on a number")
    try:
        return ENVIRONMENT.from_string(template).render(context)
    except TemplateSyntaxError as error:
        raise UserError(f"{path}:{error.lineno}: {error.message}") from None
    except (TemplateError, TypeError, UserError) as error:
        *_, frame = [one for one in traceback.extract_tb(error.__traceback__) if one.filename == "<template>"]
        raise UserError(f"{path}:{frame.lineno}: {error}") from error


def al_folio(document, paper):
    """The whole Markdown file: front matter, contents from the headings, and anchors that the contents lead to."""
    contents = markdown.contents(markdown.parser(markdown.mathjax).parse(document.body))
    if document.appendices:
        contents.append(("Appendices", [name for name, _ in document.appendices]))
    front = {
        "layout": "distill",
        "title": paper["title"],
        "description": paper["subtitle"],
        "tags": " ".join(paper["tags"]),
        "giscus_comments": False,
        "date": date.fromisoformat(paper["date"]),
        "featured": True,
        "authors": [{"name": paper["author"], "url": paper["url"], "affiliations": {"name": paper["affiliation"]}}]
        if paper["author"]
        else [],
        "bibliography": f"{paper['date']}-{paper['slug']}.bib",
        "toc": [
            {"name": name} | ({"subsections": [{"name": sub} for sub in below]} if below else {})
            for name, below in contents
        ],
    }
    written = yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=1000)
    written += f"_styles: |\n{textwrap.indent(STYLES, '  ')}"
    parts = [document.opening, "\n".join(f"- {point}" for point in document.tldr), _anchored(document.body)]
    parts += ["## Appendices {#appendices}"] if document.appendices else []
    parts += [fold(AlFolio.details, name, _anchored(part)) for name, part in document.appendices]
    return f"---\n{written}---\n\n" + "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def fold(details, name, part):
    """Markdown of an appendix that opens on demand."""
    opening = details.replace(">", f' id="{markdown.slug(name)}">')
    return f"{opening}\n<summary>{text(name)}</summary>\n\n{part.strip()}\n\n</details>"


def _anchored(part):
    tokens, lines = markdown.parser(markdown.mathjax).parse(part), part.splitlines()
    for token, _, name in markdown.headings(tokens):
        lines[token.map[0]] += " {#" + markdown.slug(name) + "}"
    return "\n".join(lines)
