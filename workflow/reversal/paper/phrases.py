"""How values become text: escaped, rounded, joined. Everything that a template prints goes through here."""

import math
import re
from html import escape

from jinja2 import Undefined
from markupsafe import Markup

UNKNOWN = "–"
MINUS = "−"
WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


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


def printed(value):
    """What `{{ value }}` becomes: escaped text or a whole number. What needs rounding or is missing is a mistake."""
    if isinstance(value, Markup | Undefined):  # Jinja tells the name of what is undefined
        return value
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TypeError(f"{value!r} is no text; choose a filter or a sentence for it")
    return text(value)


def known(value):
    """Whether a number is there."""
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def number(value, digits=2):
    """A number with `digits` after the point."""
    if not known(value):
        return Markup(UNKNOWN)
    rounded = f"{value:.{digits}f}"
    if float(rounded) == 0:
        rounded = rounded.lstrip("-")
    return Markup(rounded.replace("-", MINUS))


def count(value):
    """A whole number, thousands apart."""
    return Markup(f"{value:,}") if known(value) else Markup(UNKNOWN)


def rounded(value):
    """A large whole number roughly, in words: `1.7 million`, `38 million`, `1.1 billion`."""
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if value >= 0.9995 * size:
            return Markup(f"{value / size:.{0 if value >= 9.95 * size else 1}f} {name}")
    return count(value)


def spelt(value):
    """A small whole number as a word, others in digits."""
    return Markup(WORDS[value]) if 0 <= value < len(WORDS) else count(value)


def duration(seconds):
    """A time roughly: `50 s`, `14 minutes`, `3.2 hours`."""
    if not known(seconds):
        return Markup(UNKNOWN)
    for size, name in ((7200, "hours"), (120, "minutes")):
        if seconds >= size:
            value = seconds / (3600 if name == "hours" else 60)
            return number(value, 1 if value < 10 else 0) + f" {name}"
    return number(seconds, 1 if seconds < 10 else 0) + " s"


def percent(share, digits=0):
    """A share between 0 and 1 in percent; what is not quite none or all never looks so."""
    if not known(share):
        return Markup(UNKNOWN)
    smallest = 10.0**-digits
    if 0 < 100 * share <= smallest / 2:
        return Markup(f"&lt; {smallest:.{digits}f}%")
    if 100 - smallest / 2 <= 100 * share < 100:
        return Markup(f"&gt; {100 - smallest:.{digits}f}%")
    return number(100 * share, digits) + "%"


def points(difference, digits=0):
    """A difference between shares in percentage points, with its sign."""
    shown = signed(None if not known(difference) else 100 * difference, digits)
    return shown + (" point" if shown in ("+1", f"{MINUS}1") else " points")


def signed(value, digits=2):
    """A number with its sign."""
    shown = number(value, digits)
    return Markup("+") + shown if known(value) and value > 0 and float(shown) else shown


def interval(low, high, digits=2, scale=1):
    """The 95% interval in brackets; nothing where it is not known."""
    if not (known(low) and known(high)):
        return Markup("")
    # Coded brackets: plain ones could become a link.
    ends = number(scale * low, digits) + ", " + number(scale * high, digits)
    return Markup("&#91;") + ends + Markup("&#93;")


def _beside(shown, ends):
    return shown + " " + ends if ends else shown


def estimate(found, digits=2, joined=_beside):
    """An estimate and its interval: {estimate, low, high}."""
    return joined(number(found["estimate"], digits), interval(found["low"], found["high"], digits))


def share(found, digits=0, joined=_beside):
    """A share in percent and its interval."""
    return joined(percent(found["estimate"], digits), interval(found["low"], found["high"], digits, 100))


def at_most(value):
    """`at most 12%`; `below 1%` for what is hardly anything; `0%`."""
    shown = percent(value)
    return shown if not value else Markup("below 1%") if value < 0.005 else "at most " + shown


def gap(found, digits=0, joined=_beside):
    """A difference between shares and its interval, in points."""
    return joined(points(found["estimate"], digits), interval(found["low"], found["high"], digits, 100))


def p_value(p):
    """`p = 0.012`, or `p < 0.001`, never broken into lines."""
    if not known(p):
        return Markup("p unknown")
    return Markup("p&nbsp;&lt;&nbsp;0.001") if p < 0.001 else Markup("p&nbsp;=&nbsp;") + number(p, 3 if p < 0.1 else 2)


def listed(items, joined=" and "):
    """`a, b and c`, each item escaped; `joined` stands between the last two."""
    *others, last = [printed(item) for item in items] or [Markup("")]
    return Markup(", ").join(others) + (joined if others else "") + last


def ends(found, shown=number):
    """`0.21 to 0.35`, the ends of a range: {least, most}."""
    least, most = shown(found["least"]), shown(found["most"])
    return least if least == most else least + " to " + most


def ends_whole(found):
    """The ends of a range of whole numbers."""
    return ends(found, count)


def percents(found):
    """The ends of a range of shares, in percent."""
    return ends(found, percent)


def layers(numbers):
    """`layer 3`, or `layers 0 and 1`."""
    return Markup("layers " if len(numbers) > 1 else "layer ") + listed(numbers)


def span(numbers):
    """`up to layer 4`, or `from layer 2 to layer 4`: whole numbers side by side."""
    least, most = min(numbers), max(numbers)
    start = "up to layer " if least == 0 else "in layer " if least == most else f"from layer {least} to layer "
    return Markup(start) + str(most)


def plain(value):
    """A number in its shortest form."""
    return Markup(f"{value:g}".replace("-", MINUS))


def code(value):
    """Text for within a block of code, where nothing is decoded: without the letters that could end it."""
    return Markup(" ".join(str(value).split()).translate(str.maketrans("", "", "`{}")))


_NUMBERS = (count, ends, ends_whole, estimate, gap, interval, layers, number, p_value, percent, percents, plain)
FILTERS = {
    function.__name__: function
    for function in (*_NUMBERS, duration, rounded, signed, span, spelt, code, share, at_most)
}
