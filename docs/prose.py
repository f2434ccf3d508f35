"""`python -m docs.prose results/default/paper/DATE-SLUG.md` measures the prose of a post."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

from reversal.paper import markdown

SKIPPED = {"figure", "table", "pre", "math", "h2", "h3", "h4", "summary"}
BLOCKS = {"p", "li", "blockquote", "ul", "ol"}


class Prose(HTMLParser):
    """The paragraphs of a text, without figures, tables, formulas, headings and the lines of claims."""

    def __init__(self, html):
        super().__init__()
        self.skipped, self.paragraphs = [], [""]
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag in SKIPPED or (dict(attrs).get("class") or "").startswith("claim") or self.skipped:
            self.skipped += [tag] if tag not in ("img", "br") else []
        elif tag in BLOCKS:
            self.paragraphs.append("")

    def handle_endtag(self, tag):
        if self.skipped and tag == self.skipped[-1]:
            self.skipped.pop()

    def handle_data(self, data):
        if not self.skipped:
            self.paragraphs[-1] += data


def measure(post):
    """Words, share of long sentences, numbers per 100 words, and figures, of the main text of a post in Markdown."""
    source = post.split("---\n", 2)[2].split("\n## Appendices")[0]
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


if __name__ == "__main__":
    for name, value in measure(Path(sys.argv[1]).read_text(encoding="utf-8")).items():
        print(f"{name}: {value:.3g}" if isinstance(value, float) else f"{name}: {value}")
