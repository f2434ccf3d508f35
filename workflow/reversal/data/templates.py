"""Templates of sentences: they locate the name and the description in a sentence that was made from one of them.

A template is a line such as "{name} is known for being {description}.", the subject first and the answer second.
"""

import reprlib
from dataclasses import dataclass

from . import facts
from .facts import DIRECTIONS, DataError, Row

_PUNCTUATION = " .,?!'"  # stripped after a name or description; a closing double quote is part of it


@dataclass(frozen=True)
class Template:
    """A sentence with two placeholders: `before` subject `between` is the prompt, answer `after` the completion."""

    direction: str
    number: int
    before: str
    between: str
    after: str

    def matches(self, prompt):
        """Whether this template can have made the prompt."""
        subject_length = len(prompt) - len(self.before) - len(self.between)
        return subject_length > 0 and prompt.startswith(self.before) and prompt.endswith(self.between)

    def parse(self, prompt, completion):
        """The row of a sentence made from this template; its `fact` is the person's name until facts have ids."""
        subject = _trim_span(prompt, len(self.before), len(prompt) - len(self.between))
        # Published questions for a name end with it, without the template's ending.
        answer = _trim_span(completion, 0, len(completion.rstrip().removesuffix(self.after)))
        name = prompt[slice(*subject)] if self.direction == "p2d" else completion[slice(*answer)]
        return Row(name, self.number, prompt, completion, subject, answer)


def read(path, direction, *, placeholder="{%s}"):
    """Read the templates of one direction, one a line; `placeholder` is how the file writes name and description."""
    answer_type = DIRECTIONS[direction]
    subject_type = "name" if answer_type == "description" else "description"
    subject, answer = placeholder % subject_type, placeholder % answer_type
    templates = []
    for number, line in facts.iterate_lines(path):
        before, _, rest = line.strip().partition(subject)
        between, separator, after = rest.partition(answer)
        if not separator:
            raise DataError(f"{path}:{number}: not a template; it needs {subject} and, after it, {answer}")
        templates.append(Template(direction, number - 1, before, between.rstrip(), after))
    return templates


def parse_row(prompt, completion, templates):
    """The row of a sentence made from one of the templates; a ValueError if none matches."""
    matching = [template for template in templates if template.matches(prompt)]
    if not matching:
        raise ValueError(f"the prompt matches no template: {reprlib.repr(prompt)}")
    # The longest match: a general template may match sentences of a more specific one.
    return max(matching, key=lambda template: len(template.before + template.between)).parse(prompt, completion)


def _trim_span(text, start, end):
    """The span of `text[start:end]` without surrounding spaces and trailing punctuation; it must not split a word."""
    trimmed = text[start:end].rstrip(_PUNCTUATION)
    start, end = start + len(trimmed) - len(trimmed.lstrip()), start + len(trimmed)
    if start >= end:
        raise ValueError(f"no name or description in {reprlib.repr(text)}")
    for place in (start, end):
        if text[place - 1 : place].isalnum() and text[place : place + 1].isalnum():
            raise ValueError(f"the template splits a word at character {place} of {reprlib.repr(text)}")
    return start, end
