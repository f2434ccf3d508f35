"""Prompts of one's own, to see what comes first to a model's mind."""

from .generated import read_lines


def read(path, count):
    """The first prompts of a file, one a line, each with what stands after its "=>", or None: [(prompt, answer), …]."""
    pairs = [line.partition("=>") for line in read_lines(path)]
    return [(prompt.rstrip(), answer.strip() or None) for prompt, _, answer in pairs][:count]
