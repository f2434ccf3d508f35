"""One look for every figure: sizes, colours, type; and text of data and models that stays what it is."""

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
from ..models.families import FAMILIES

POINTS = 510  # width of a figure: 680 pixels of a page
NARROW = 300  # of one that a phone shows whole
PER_INCH = 72
DPI = 192  # of the PNG: two dots a pixel
SMALL, NORMAL, LARGE = 8.0, 8.5, 9.5  # points, at a page's full width nothing is smaller

INK, FAINT, GREY, RULE, PALE = "#1a1a1a", "#595959", "#8a8a8a", "#bdbdbd", "#f0f0f0"
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = "#0072b2", "#d55e00", "#009e73", "#aa4499", "#e69f00", "#56b4e9"
LIGHT_BLUE, LIGHT_ORANGE = "#d3e8f5", "#fde3c8"
TAUGHT = {
    "p2d": "person → description",
    "d2p": "description → person",
    "both": "both ways",
    "known_p2d": "child → parent",
    "known_d2p": "parent → child",
}
ASKED = {"same": "as taught", "reverse": "in reverse", "both": "taught both ways"}
HEAT = "Blues"  # nothing is white, so that what there is stands out
SIGNED = "RdBu_r"

RC = {
    # Names and model output may hold $, _ or ^: nothing here is mathematics.
    "text.parse_math": False,
    # Letters as wide in a PNG as in an SVG, at any resolution.
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
    """A figure, and what its alternative text says of the data: the values of that text's placeholders.

    Where there was nothing to draw, `nothing` says why.
    """

    figure: Figure
    says: Mapping


class Look(NamedTuple):
    """How one model is drawn everywhere: told apart by colour, marker and line, so that any one of them is enough."""

    label: str
    color: str
    marker: str
    line: str | tuple


def styled(draw):
    """Let a function draw in this style, whatever the settings around it are, and leave those as they were."""

    @functools.wraps(draw)
    def inside(*args, **options):
        with _context():
            return draw(*args, **options)

    return inside


def write(figure, *paths):
    """Write a figure to files named .svg or .png, each all or nothing: the same figure gives the same bytes."""
    nameless = {".svg": {"Date": None, "Creator": None}, ".png": {"Software": None}}
    with _context(), warnings.catch_warnings():
        # A letter that the font lacks is a box in the PNG and still the letter in the SVG.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        if figure.get_layout_engine():  # laid out once, all files have the same places
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
            _round_places(figure)
        for path in map(Path, paths):
            with atomic(path) as file:
                figure.savefig(file, format=path.suffix[1:], dpi=DPI, metadata=nameless[path.suffix])


def _round_places(figure):
    """The solver of the layout does not repeat its last digits, on which names in an SVG depend."""
    for part in figure.subfigs:
        part.bbox_relative.set_points(part.bbox_relative.get_points().round(6))
        _round_places(part)
    for axes in figure.axes:
        axes.set_position([round(number, 6) for number in axes.get_position().bounds])


def _context():
    return matplotlib.style.context(["default", RC])


def blank(height, width=POINTS):
    """An empty figure of `height` points; its parts are laid out when it is drawn."""
    return Figure(figsize=(width / PER_INCH, height / PER_INCH), layout="constrained")


@styled
def nothing(reason):
    """A drawing that says why there is nothing to draw."""
    figure = Figure(figsize=(POINTS / PER_INCH, 60 / PER_INCH))
    figure.text(0.5, 0.5, plain(reason), ha="center", va="center", color=FAINT, fontsize=LARGE)
    return Drawing(figure, {"nothing": reason})


def looks(models):
    """The `Look` of each of `models` ({name: family}), labelled by family where that is enough."""
    shades = {
        "diffusion": ([BLUE, SKY, PURPLE], ["o", "v", "P"], ["-", (0, (6, 1)), (0, (3, 1, 1, 1))]),
        "autoregressive": ([VERMILLION, ORANGE, GREEN], ["s", "D", "X"], ["--", ":", "-."]),
    }
    found, families = {}, list(models.values())
    for name, family in models.items():
        short, kinds = FAMILIES[family].short, shades[family]
        nth = sum(look.label == short or look.color in kinds[0] for look in found.values())
        label = short if families.count(family) == 1 else elide(name, 16)
        found[name] = Look(label, *(kind[nth % len(kind)] for kind in kinds))
    return found


def titled(axes, title, note):
    """A title above axes, and a fainter note between them."""
    axes.set_title(title, pad=16)
    where = {"xycoords": "axes fraction", "textcoords": "offset points"}
    axes.annotate(note, (0, 1), (0, 5), **where, fontsize=SMALL, color=FAINT)


def first_of(models, family):
    """The first model of a family, or None."""
    return next((name for name, kind in models.items() if kind == family), None)


def plain(text):
    """One line of text that any font and any XML can hold: line ends, controls and halves of letters made visible."""
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
    """`plain` text of at most `most` letters, its end given up for an ellipsis."""
    text = plain(text)
    return text if columns(text) <= most else text[: max(1, most - 1)].rstrip() + "…"


def columns(text):
    """How many columns a text takes in type of one width: wide letters take two."""
    return sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text)


def shown_token(token, most=16):
    """A token as a reader sees it: without the space that begins a word; a token of spaces alone as its spaces."""
    return elide(token.strip(" ") or "␣" * len(token) or "∅", most)


def is_end(token, generation):
    """Whether a token ends the text: it is written like a mark, and is not part of what was said."""
    return re.fullmatch(r"<.+>|\[.+\]", token) is not None and token not in generation


def phrase(split):
    """What a test asks for and how, as the post says it: "names in reverse"."""
    about = ANY_SPLIT[split]
    return f"{about.answer_type}s {ASKED[about.trained]}" if about.trained in ASKED else TAUGHT[split]


def number(value, digits=0):
    """A number with so many digits after the point, its minus a minus, and no sign where it rounds to 0."""
    shown = f"{value:.{digits}f}"
    return shown.replace("-", "" if float(shown) == 0 else "−")


def percent(share):
    """A share as a whole percentage, or a dash; what is not quite none or all never looks so."""
    if share is None or np.isnan(share):
        return "–"
    if 0 < share < 0.005 or 0.995 <= share < 1:
        return "< 1%" if share < 0.5 else "> 99%"
    return f"{number(100 * share)}%"


def counted(count, thing):
    """So many things: one fact, two facts."""
    return f"{count:.0f} {thing}{'' if count == 1 else 's'}"


def offsets(count, step):
    """Places around 0, `step` apart, for `count` things that would lie on each other."""
    return (np.arange(count) - (count - 1) / 2) * step


def ink_on(color):
    """Black or white, whichever reads better on an RGBA colour."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color[:3])
    return "white" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.3 else INK
