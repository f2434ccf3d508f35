"""Figures made of text: boxes and lines of type, laid out from the top in points."""

import re
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .style import FAINT, INK, NORMAL, PER_INCH, POINTS, SMALL, columns, plain

LETTER = 1233 / 2048  # advance of the monospaced type, in sizes
LEADING = 1.45  # distance of lines, in sizes
MARGIN = 6
GAP = 2.5  # between boxes
BOX = 15  # height of a box with a line of type


class Cell(NamedTuple):
    """One box of a canvas."""

    text: str
    fill: str = "white"
    edge: str = FAINT
    ink: str = INK
    bold: bool = False
    below: str = ""


class Sheet:
    """A page of a figure's width that grows downwards; `y`, in points from the top, is where the next item goes."""

    def __init__(self, width=POINTS):
        self.width = width
        self.figure = Figure(figsize=(width / PER_INCH, 1))
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.axis("off")
        self.panels = []
        self.y = MARGIN

    def text(self, x, y, text, *, size=NORMAL, mono=False, **options):
        """Text whose baseline is at `y`."""
        family = {"family": "monospace"} if mono else {}
        # SVG collapses spaces, but not non-breaking ones.
        spaced = re.sub(" (?= )|^ | $", "\u00a0", plain(text))
        return self.axes.text(x, y, spaced, fontsize=size, va="baseline", **family, **options)

    def heading(self, text, note=""):
        """A line in bold with a fainter note after it."""
        self.y += 12
        self.text(MARGIN, self.y, text, size=NORMAL + 0.5, fontweight="bold")
        if note:
            self.text(self.width - MARGIN, self.y, note, size=NORMAL - 0.5, color=FAINT, ha="right")
        self.y += 6

    def paragraph(self, x, text, width, *, size=NORMAL, step=LEADING * NORMAL, lines=3, **options):
        """Lines of monospaced type, `step` points apart, within `width` points."""
        for line in wrap([(text, None)], width, size, lines=lines):
            self.y += step
            self.text(x, self.y, "".join(part for part, _ in line), size=size, mono=True, **options)

    def box(self, x, y, width, height, **options):
        """A rectangle from its upper left corner."""
        self.axes.add_patch(Rectangle((x, y), width, height, **{"linewidth": 0.7, **options}))

    def line(self, xs, ys, **options):
        """A line through points."""
        self.axes.plot(xs, ys, **{"color": FAINT, "linewidth": 0.7, "solid_capstyle": "butt", **options})

    def cells(self, cells, widths, *, x, room, size=NORMAL):
        """Boxes in rows, as wide as `widths` say, each with its note below if there is room for it."""
        pitch = BOX + GAP + (10 if any(cell.below for cell in cells) else 0)
        places = flow(widths, room)
        taken = (0, 0.0)  # row and end of the last note
        for cell, width, (row, left) in zip(cells, widths, places, strict=True):
            top, middle = self.y + row * pitch, x + left + width / 2
            edge = {"edgecolor": cell.edge, "linewidth": 1.6 if cell.bold else 0.7}
            self.box(x + left, top, width, BOX, facecolor=cell.fill, **edge)
            weight = "bold" if cell.bold else "normal"
            line = top + BOX / 2 + 0.36 * size
            self.text(middle, line, cell.text, size=size, mono=True, ha="center", color=cell.ink, fontweight=weight)
            half = 0.65 * SMALL * len(cell.below) / 2 + 1
            # A note that would overlap the one before it is left out.
            if cell.below and (row, middle - half) >= taken:
                taken = (row, middle + half)
                self.text(middle, top + BOX + 9, cell.below, size=SMALL, ha="center", color=FAINT)
        self.y += (places[-1][0] + 1 if places else 0) * pitch

    def panel(self, x, y, width, height):
        """Axes of a chart with their upper left corner at (x, y)."""
        axes = self.figure.add_axes((0, 0, 1, 1))
        self.panels.append((axes, x, y, width, height))
        return axes

    def finish(self):
        """The figure, as high as its content."""
        height = self.y + MARGIN
        self.figure.set_size_inches(self.width / PER_INCH, height / PER_INCH)
        self.axes.set(xlim=(0, self.width), ylim=(height, 0))
        for axes, x, y, wide, tall in self.panels:
            axes.set_position((x / self.width, 1 - (y + tall) / height, wide / self.width, tall / height))
        return self.figure


def width_of(text, size=NORMAL):
    """The width in points of a text in monospaced type."""
    return columns(plain(text)) * LETTER * size


def wrap(pieces, width, size=NORMAL, lines=None):
    """Break [(text, kind), …] into lines of monospaced type that `width` points hold: [[(text, kind), …], …].

    Words are broken only if longer than a line. Text beyond `lines` lines is cut off with an ellipsis.
    """
    most = max(4, int(width / (LETTER * size)))
    letters = [(letter, kind) for text, kind in pieces for letter in plain(text)]
    wrapped, start = [], 0
    while start < len(letters):
        end = _line_end(letters, start, most)
        wrapped.append(letters[start:end])
        start = end
        while start < len(letters) and letters[start][0] == " ":
            start += 1
    if lines and len(wrapped) > lines:
        wrapped = wrapped[:lines]
        while sum(columns(letter) for letter, _ in wrapped[-1]) >= most or wrapped[-1][-1][0] == " ":
            wrapped[-1].pop()
        wrapped[-1].append(("…", wrapped[-1][-1][1]))
    return [_join(line) for line in wrapped] or [[]]


def _line_end(letters, start, most):
    """The end of the line from `start`: at its last space, or within a word that is longer than a line."""
    used, end, space = 0, start, None
    while end < len(letters):
        if letters[end][0] == " ":
            space = end
        used += columns(letters[end][0])
        if used > most:
            return max(space if space is not None and space > start else end, start + 1)
        end += 1
    return end


def _join(letters):
    joined = []
    for letter, kind in letters:
        if joined and joined[-1][1] == kind:
            joined[-1] = (joined[-1][0] + letter, kind)
        else:
            joined.append((letter, kind))
    return joined


def flow(widths, room):
    """Rows of boxes side by side within `room` points: [(row, x), …], one for each of `widths`."""
    places, row, x = [], 0, 0.0
    for width in widths:
        if x and x + width > room:
            row, x = row + 1, 0.0
        places.append((row, x))
        x += width + GAP
    return places
