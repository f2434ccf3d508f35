"""One style for every figure: sizes, colours and type; and text of data and models as labels, letter for letter.

A drawing function is decorated with `styled`, starts from `new_figure` or a `sheet.Sheet`, and returns a `Drawing`.
"""

import functools
import re
import unicodedata
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import matplotlib
import matplotlib.style
import numpy as np
from matplotlib.figure import Figure

from ..common.files import atomic
from ..data.facts import ANY_SPLIT
from ..models.vocabulary import FAMILIES

POINTS = 510  # width of a figure: 680 pixels on a page
NARROW = 300  # width of a figure that fits a phone
PER_INCH = 72
DPI = 192  # of the PNG: two dots per pixel
SMALL, NORMAL, LARGE = 8.0, 8.5, 9.5  # sizes of type in points; SMALL is the smallest

INK, FAINT, GREY, RULE, PALE = "#1a1a1a", "#595959", "#8a8a8a", "#bdbdbd", "#f0f0f0"
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = "#0072b2", "#d55e00", "#009e73", "#aa4499", "#e69f00", "#56b4e9"
LIGHT_BLUE, LIGHT_ORANGE = "#d3e8f5", "#fde3c8"
DIRECTION_LABELS = {
    "p2d": "person → description",
    "d2p": "description → person",
    "both": "in both directions",
    "known_p2d": "child → parent",
    "known_d2p": "parent → child",
}
QUESTION_LABELS = {"same": "same direction", "reverse": "reverse direction", "both": "both directions"}
HEAT = "Blues"  # colour map: zero is white
SIGNED = "RdBu_r"

RC = {
    # Names and model output may hold $, _ or ^, which are not mathematics.
    "text.parse_math": False,
    # Letters are as wide in a PNG as in an SVG, at any resolution.
    "text.hinting": "no_hinting",
    "svg.fonttype": "none",
    "svg.hashsalt": "reversal",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Helvetica", "Arial", "sans-serif"],
    "font.monospace": ["DejaVu Sans Mono", "Menlo", "Consolas", "monospace"],
    "font.size": NORMAL,
    "axes.titlesize": NORMAL,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": NORMAL,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.7,
    "axes.axisbelow": True,
    "grid.color": PALE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "errorbar.capsize": 0,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "image.interpolation": "nearest",
}


class Drawing(NamedTuple):
    """A figure, and the values for the placeholders of its alternative text; {"nothing": reason} if it is empty."""

    figure: Figure
    alt_values: Mapping


class Look(NamedTuple):
    """How one model is drawn in every figure: colour, marker and line each identify it."""

    label: str
    color: str
    marker: str
    line: str | tuple


def styled(draw):
    """Decorate a function to draw in this style, whatever matplotlib's settings, and to leave those unchanged."""

    @functools.wraps(draw)
    def draw_in_style(*args, **options):
        with _context():
            return draw(*args, **options)

    return draw_in_style


def write(figure, *paths):
    """Write a figure to .svg or .png files, each all or nothing. The same figure gives the same bytes."""
    metadata = {".svg": {"Date": None, "Creator": None}, ".png": {"Software": None}}
    with _context(), warnings.catch_warnings():
        # A letter that the font lacks is a box in the PNG but stays a letter in the SVG.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        if figure.get_layout_engine():  # lay out once, so that all files agree
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
            _round_positions(figure)
        for path in map(Path, paths):
            with atomic(path) as file:
                figure.savefig(file, format=path.suffix[1:], dpi=DPI, metadata=metadata[path.suffix])


def _round_positions(figure):
    """Round positions: the layout solver does not reproduce its last digits, on which identifiers in an SVG depend."""
    for part in figure.subfigs:
        part.bbox_relative.set_points(part.bbox_relative.get_points().round(6))
        _round_positions(part)
    for axes in figure.axes:
        axes.set_position([round(number, 6) for number in axes.get_position().bounds])


def _context():
    return matplotlib.style.context(["default", RC])


def new_figure(height, width=POINTS):
    """An empty figure of `height` points, laid out when it is drawn."""
    return Figure(figsize=(width / PER_INCH, height / PER_INCH), layout="constrained")


@styled
def draw_empty(reason):
    """A drawing with only the `reason` why there is nothing to draw."""
    figure = Figure(figsize=(POINTS / PER_INCH, 60 / PER_INCH))
    figure.text(0.5, 0.5, plain(reason), ha="center", va="center", color=FAINT, fontsize=LARGE)
    return Drawing(figure, {"nothing": reason})


def choose_looks(models):
    """{name: `Look`} of `models` ({name: family}), labelled by family if no other model has it."""
    styles = {
        "diffusion": ([BLUE, SKY, PURPLE], ["o", "v", "P"], ["-", (0, (6, 1)), (0, (3, 1, 1, 1))]),
        "autoregressive": ([VERMILLION, ORANGE, GREEN], ["s", "D", "X"], ["--", ":", "-."]),
    }
    looks, families = {}, list(models.values())
    for name, family in models.items():
        short, variants = FAMILIES[family].short, styles[family]
        nth = sum(look.label == short or look.color in variants[0] for look in looks.values())
        label = short if families.count(family) == 1 else elide(name, 16)
        looks[name] = Look(label, *(variant[nth % len(variant)] for variant in variants))
    return looks


def draw_intervals(axes, x, rows, value="accuracy", *, scale=100, interval=None, **style):
    """Draw a line or marks at `x` in `style`, with vertical 95% intervals in the style `interval`; return their handle.

    `rows` is a table with the columns `value`, ci_low and ci_high, which are multiplied by `scale`.
    """
    interval = {"color": style["color"], "linewidth": 0.9} | (interval or {})
    axes.vlines(x, scale * rows.ci_low, scale * rows.ci_high, **interval)
    return axes.plot(x, scale * rows[value], **style)[0]


def add_color_bar(figure, image, panels, label, location="bottom", **options):
    """Add the scale of a heat map of shares beside its panels."""
    bar = figure.colorbar(image, ax=list(panels), location=location, aspect=40, **options)
    bar.formatter = lambda share, _: percent(share)
    bar.set_label(label)
    bar.outline.set_visible(False)


def first_model(models, family):
    """The first model of a family, or None."""
    return next((name for name, kind in models.items() if kind == family), None)


def plain(text):
    """One line of text that is valid in XML: line ends, control characters and lone surrogates become visible signs."""
    return "".join(_visible(letter) for letter in str(text))


def _visible(letter):
    code = ord(letter)
    if letter in "\n\r":
        return "↵"
    if letter == "\t":
        return "→"
    if code < 32:
        return chr(0x2400 + code)
    if 0x7F <= code <= 0x9F or unicodedata.category(letter) == "Cs" or code & 0xFFFE == 0xFFFE:
        return "\ufffd"
    return letter


def elide(text, most):
    """`plain` text of at most `most` letters, cut off with an ellipsis."""
    text = plain(text)
    return text if columns(text) <= most else text[: max(1, most - 1)].rstrip() + "…"


def columns(text):
    """The number of columns of a text in monospaced type, where wide letters take two."""
    return sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text)


def shown_token(token, most=16):
    """A token as a label: without the space that begins a word; spaces alone as signs for spaces."""
    return elide(token.strip(" ") or "␣" * len(token) or "∅", most)


def is_end(token, generation):
    """Whether a token is an end marker such as <eos>: it looks like one and is not part of the generated text."""
    return re.fullmatch(r"<.+>|\[.+\]", token) is not None and token not in generation


def describe_split(split):
    """A test in words: what it asks for, and in which direction: "names, reverse direction"."""
    answer_type, trained = ANY_SPLIT[split].answer_type, ANY_SPLIT[split].trained
    return f"{answer_type}s, {QUESTION_LABELS[trained]}" if trained in QUESTION_LABELS else DIRECTION_LABELS[split]


def number(value, digits=0):
    """A number with `digits` after the point, a proper minus sign, and no sign if it rounds to 0."""
    shown = f"{value:.{digits}f}"
    return shown.replace("-", "" if float(shown) == 0 else "−")


def percent(share):
    """A share as a whole percentage, or a dash if missing; only exact shares read 0% or 100%."""
    if share is None or np.isnan(share):
        return "–"
    if 0 < share < 0.005 or 0.995 <= share < 1:
        return "< 1%" if share < 0.5 else "> 99%"
    return f"{number(100 * share)}%"


def pluralize(count, thing):
    """A count with its noun: 1 fact, 2 facts."""
    return f"{count:.0f} {thing}{'' if count == 1 else 's'}"


def offsets(count, step):
    """`count` positions around 0, `step` apart, for marks that would overlap."""
    return (np.arange(count) - (count - 1) / 2) * step


def ink_on(color):
    """The text colour, black or white, with the better contrast on an RGBA colour."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color[:3])
    return "white" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.3 else INK
