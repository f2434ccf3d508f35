"""What is known of the post before there is a number: its templates can be read, works and figures have their texts."""

import re
from pathlib import Path

import yaml
from jinja2 import Environment, TemplateSyntaxError

from ..common.errors import UserError
from . import bibliography


def require(folder, figures):
    """Refuse texts of the paper, in a `folder`, from which no post with these `figures` could be made."""
    templates = sorted(Path(folder).glob("*.j2"))
    for template in templates:
        try:
            Environment(autoescape=True).parse(template.read_text(encoding="utf-8"))
        except TemplateSyntaxError as error:
            raise UserError(f"{template}:{error.lineno}: {error.message}") from None
    calls = [call for file in templates for call in re.findall(r"\bcite\(([^)]*)\)", file.read_text(encoding="utf-8"))]
    works = Path(folder) / "references.bib"
    bibliography.check(re.findall(r'"([^"]+)"', " ".join(calls)), bibliography.read(works), works)
    texts = yaml.safe_load((Path(folder) / "alt.yaml").read_text(encoding="utf-8"))
    for figure in figures:
        if figure not in texts:
            raise UserError(f"{folder}/alt.yaml: no text for {figure}; every figure has one")
