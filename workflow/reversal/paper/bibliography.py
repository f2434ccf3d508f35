"""The references: read from BibTeX, and set as HTML."""

from pybtex.backends.html import Backend
from pybtex.database import parse_file
from pybtex.exceptions import PybtexError
from pybtex.style.formatting.plain import Style

from ..common.errors import UserError


def read(path):
    """The entries of a BibTeX file by key."""
    try:
        return parse_file(str(path), "bibtex").entries
    except PybtexError as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None


def references(cited, entries):
    """{key: its line in the list as HTML}, in the order of first citation."""
    style, backend = Style(), Backend()
    return {key: style.format_entry("", entries[key]).text.render(backend) for key in dict.fromkeys(cited)}
