"""`python -m docs.prose` renders the article from the reference runs and measures its prose.

Errors name the file and the line. This run's tables and figures are those of results/default if it is there; if not,
this run's lines are those of the five seeds, its tables are left out, and figures are empty frames. `--page FILE`
writes the page.
"""

import argparse
import json
import re
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import yaml

from reversal.common.errors import UserError
from reversal.common.intervals import Interval
from reversal.figures.registry import FIGURES
from reversal.paper import bibliography, claims, markdown, numbers, page, post, provenance

ROOT = Path(__file__).resolve().parent.parent
PAPER = ROOT / "paper"
SKIPPED = {"figure", "table", "pre", "math", "h2", "h3", "h4", "summary"}
BLOCKS = {"p", "li", "blockquote", "ul", "ol"}
FRAME = '<svg xmlns="http://www.w3.org/2000/svg" width="510pt" height="240pt"><text x="20" y="45">{}</text></svg>'


class Prose(HTMLParser):
    """The paragraphs of a text, without figures, tables, formulas, headings, citations and the lines of claims."""

    def __init__(self, html):
        super().__init__()
        self.skipped, self.paragraphs = [], [""]
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        style = dict(attrs).get("class") or ""
        if tag in SKIPPED or style.startswith(("claim", "cite")) or self.skipped:
            self.skipped += [tag] if tag not in ("img", "br") else []
        elif tag in BLOCKS:
            self.paragraphs.append("")

    def handle_endtag(self, tag):
        if self.skipped and tag == self.skipped[-1]:
            self.skipped.pop()

    def handle_data(self, data):
        if not self.skipped:
            self.paragraphs[-1] += data


def measure(document):
    """Words, share of long sentences, numbers per 100 words, and figures, of a document's main text."""
    source = "\n\n".join([document.opening, *document.tldr, document.body])
    paragraphs = [" ".join(one.split()) for one in Prose(markdown.parser().render(source)).paragraphs]
    ends = r"(?<=[.!?:])[”\"’)]*\s+(?=[A-Z“\"‘(`\d])"
    sentences = [sentence for paragraph in paragraphs for sentence in re.split(ends, paragraph) if sentence]
    lengths = [len(sentence.split()) for sentence in sentences]
    digits = re.findall(r"\d[\d.,]*", re.sub(r"\b(Figure|Table) \d+|GPT-4o", "", " ".join(sentences)))
    return {
        "words": sum(lengths),
        "share of sentences over 35 words": sum(length > 35 for length in lengths) / len(lengths),
        "numbers per 100 words": 100 * len(digits) / sum(lengths),
        "figures": source.count('<figure class="figure-block"'),
        "longest sentence": max(zip(lengths, sentences, strict=True))[1],
    }


class Preview(provenance.Provenance):
    """The provenance of files that no rule made yet."""

    def of(self, file):
        return f"preview of {file}"


def collect(results, frames):
    """The article's material from the reference runs and, where they are there, the tables and figures of `results`.

    A figure that is not drawn is an empty frame in the folder `frames`.
    """
    sources = [post.read_source(PAPER / name) for name in ("article.md", "appendices.md") if (PAPER / name).is_file()]
    runs = numbers.group_runs(sorted(PAPER.glob("reference/*/*.csv"))) | {
        "paper": numbers.Run("paper", {"table3": PAPER / "table3.csv"})
    }
    here = {file.stem: file for file in sorted(results.glob("tables/*.csv"))}
    if not here:  # tables of this run can have columns that the reference runs lack
        without = [re.sub(r"\{\{ table\((?!.*run=).*\) \}\}", "", source.text) for source in sources]
        sources = [source._replace(text=text) for source, text in zip(sources, without, strict=True)]
    runs = {"this": numbers.Run("this", here or runs["seeds"].files), **runs}
    stated = claims.read(PAPER / "claims.yaml")
    table = claims.evaluate(stated, {name: run for name, run in runs.items() if name != "paper"})
    claims.require(stated, table)
    figures = {}
    for name in re.findall(r'\bfigure\("(\w+)"', "".join(source.text for source in sources)):
        figures[name] = results / f"figures/{name}.svg"
        if not figures[name].is_file():
            figures[name] = frames / f"{name}.svg"
            figures[name].write_text(FRAME.format(name))
    config = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))
    quantities = numbers.read_numbers(PAPER / "numbers.yaml")
    provenances = PAPER.glob("reference/*/provenance.json")
    return post.Material(
        sources=sources,
        paper=config["paper"] | sources[0].front,
        runs=runs,
        numbers=quantities,
        measured=numbers.measure_all(quantities, runs, "paper/numbers.yaml"),
        claims=stated,
        verdicts={(row.claim, row.run): (Interval(*row[3:6]), row.verdict) for row in table.itertuples()},
        figures=figures,
        captions={name: getattr(FIGURES.get(name), "caption", f"Caption of {name}.") for name in figures},
        alternatives=dict.fromkeys(figures, "preview"),
        entries=bibliography.read(PAPER / "references.bib"),
        origin=Preview(
            "preview", "", "", {}, {}, {file.parent.name: json.loads(file.read_text()) for file in provenances}
        ),
        settings=config,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="write the page to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as frames:
        material = collect(ROOT / "results/default", Path(frames))
        document = post.write(post.Page((PAPER / "explorer.html").read_text(encoding="utf-8")), material)
        for name, value in measure(document).items():
            print(f"{name}: {value:.3g}" if isinstance(value, float) else f"{name}: {value}")
        if options.page:
            style = (PAPER / "page.css").read_text(encoding="utf-8")
            script = "\n".join(
                (PAPER / f"{name}.js").read_text(encoding="utf-8") for name in ("page", "drawing", "explorer")
            )
            made = page.page(PAPER / "page.html.j2", document, material, data={"cases": []}, style=style, script=script)
            options.page.write_text(made, encoding="utf-8")
        post.require_complete(document, material)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
