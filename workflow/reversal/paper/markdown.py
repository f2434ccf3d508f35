"""Markdown to HTML, with math as MathML or left to MathJax, and the headings of a text."""

import re
from html import escape

from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from markupsafe import Markup
from mdit_py_plugins.anchors import anchors_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin

from ..common.errors import UserError


def text(value):
    """Any text as text: no character of it means anything to Markdown, HTML, Liquid or MathJax.

    Letters, digits and plain punctuation stay readable; all else becomes a numbered entity, which every one of them
    prints and none of them obeys. MathJax reads what the entities stand for, so `$` also needs a class it ignores.
    """
    coded = "".join(c if c.isalnum() or c in " .,;:?!" else f"&#{ord(c)};" for c in re.sub(r"\s+", " ", str(value)))
    if "$" in str(value) or "\\" in str(value):
        return Markup(f'<span class="mathjax_ignore">{coded}</span>')
    return Markup(coded)


def attribute(value):
    """Text for a double-quoted HTML attribute; braces are Liquid's, so they are coded too."""
    return Markup(escape(str(value)).replace("{", "&#123;").replace("}", "&#125;").replace("\n", " "))


def mathml(source, *, display):
    """A formula as MathML. What the converter does not know it passes on as text: that is an error here."""
    made = convert(source.strip(), display="block" if display else "inline")
    if "\\" in re.sub(r"<[^>]*>", "", made) or re.search(r"<m[ion][^>]*/>|<m[ion]></m[ion]>", made):
        raise UserError(f"formula {source.strip()!r} has something that MathML can not show")
    return made


def mathjax(source, *, display):
    """A formula inside raw HTML, where kramdown leaves it to MathJax."""
    opening, closing = (r"\[", r"\]") if display else (r"\(", r"\)")
    return opening + escape(source.strip()) + closing


def parser(math=mathml):
    """CommonMark with tables and `$$…$$`: inline within a paragraph, displayed where it is one, as in kramdown."""
    reader = MarkdownIt("commonmark", {"html": True, "typographer": True}).enable(["table", "smartquotes"])
    reader.use(dollarmath_plugin, double_inline=True, allow_labels=False)
    reader.use(anchors_plugin, max_level=4, slug_func=slug)
    for token, display in (("math_inline", False), ("math_inline_double", False), ("math_block", True)):

        def rule(self, tokens, at, options, env, display=display):
            return math(tokens[at].content, display=display) + ("\n" if display else "")

        reader.add_render_rule(token, rule)
    return reader


def slug(name):
    """The anchor of a heading, as Jekyll's `slugify` makes it: al-folio's table of contents links there."""
    return re.sub(r"[^\w]+|_", "-", name.lower()).strip("-")


def headings(tokens):
    """(token, level, name) of each heading of parsed Markdown."""
    for token, content in zip(tokens, tokens[1:], strict=False):
        if token.type == "heading_open":
            yield token, int(token.tag[1]), content.content


def contents(tokens):
    """The second level's headings, each with those of the third below it: [(name, [name])]."""
    listed = []
    for _, level, name in headings(tokens):
        if level == 2:
            listed.append((name, []))
        elif level == 3 and listed:
            listed[-1][1].append(name)
    return listed


def check_anchors(names):
    """Two headings with one anchor would lead to one place."""
    slugs = [slug(name) for name in names]
    if twice := sorted({one for one in slugs if slugs.count(one) > 1}):
        raise UserError(f"two headings have the anchor {twice[0]}; give each its own name")
