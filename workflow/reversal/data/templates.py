"""Templates that sentences were made from: where in a sentence the name and the description stand."""

import reprlib
from dataclasses import dataclass

from . import facts
from .facts import DIRECTIONS, DataError, Row

_STRAY = " .,?!'"  # may follow a name or a description; a double quote that closes one is part of it


@dataclass(frozen=True)
class Template:
    """A sentence with two gaps: `before` subject `between` is the prompt, answer `after` the completion."""

    direction: str
    number: int
    before: str
    between: str
    after: str

    def fits(self, prompt):
        gap = len(prompt) - len(self.before) - len(self.between)
        return gap > 0 and prompt.startswith(self.before) and prompt.endswith(self.between)

    def row(self, prompt, completion):
        """The row of a sentence made from this template; its fact is the person's name for now."""
        subject = _trim(prompt, len(self.before), len(prompt) - len(self.between))
        # Published tests of a name end with it: what the template has after it is left out.
        answer = _trim(completion, 0, len(completion.rstrip().removesuffix(self.after)))
        name = prompt[slice(*subject)] if self.direction == "p2d" else completion[slice(*answer)]
        return Row(name, self.number, prompt, completion, subject, answer)


def read(path, direction, *, gap="{%s}"):
    """The templates of one direction in a file, in order; the first `gap` is the subject's, the second the answer's."""
    asked = DIRECTIONS[direction]
    subject, answer = (gap % ("name" if asked == "description" else "description")), gap % asked
    templates = []
    for number, line in facts.lines(path):
        before, _, rest = line.strip().partition(subject)
        between, found, after = rest.partition(answer)
        if not found:
            raise DataError(f"{path}:{number}: not a template; one has {subject} and after it {answer}")
        templates.append(Template(direction, number - 1, before, between.rstrip(), after))
    return templates


def row(prompt, completion, templates):
    """The row of a sentence that one of the templates made; a ValueError says that none did."""
    fitting = [template for template in templates if template.fits(prompt)]
    if not fitting:
        raise ValueError(f"the prompt fits no template: {reprlib.repr(prompt)}")
    # Where a general template fits as well as a longer one, the longer one made the sentence.
    return max(fitting, key=lambda template: len(template.before + template.between)).row(prompt, completion)


def _trim(text, start, end):
    """The span of `text[start:end]` without the spaces and stray punctuation around it: whole words."""
    kept = text[start:end].rstrip(_STRAY)
    start, end = start + len(kept) - len(kept.lstrip()), start + len(kept)
    if start >= end:
        raise ValueError(f"no name or description in {reprlib.repr(text)}")
    for cut in (start, end):
        if text[cut - 1 : cut].isalnum() and text[cut : cut + 1].isalnum():
            raise ValueError(f"a word is cut in two at character {cut} of {reprlib.repr(text)}")
    return start, end
