"""Wrong data, model files and machines: each is answered by one line that names what is wrong, as early as can be."""

import ast

import pytest

from docs import errors


@pytest.mark.parametrize(
    "mistake, expected", [case[1:] for case in errors.FILES], ids=[case[0] for case in errors.FILES]
)
def test_a_mistake_is_told_in_one_line_and_not_after_a_training(mistake, expected):
    line, stage = errors.told(mistake)
    assert expected in line and "\n" not in line
    assert stage in (errors.START, errors.FIRST, errors.TRAINING)


def refusals(root):
    """Where the library raises a user's mistake: {(file, function)}."""
    named = ("UserError", "DataError", "ModelError", "GenerationError", "TrainingError", "DownloadError")
    for path in (root / "workflow/reversal").rglob("*.py"):
        tree = ast.parse(path.read_text())
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                    name = node.exc.func.id if isinstance(node.exc.func, ast.Name) else node.exc.func.attr
                    if name in named:
                        yield path.relative_to(root / "workflow/reversal").as_posix(), function.name


def test_every_refusal_has_a_stage_and_those_after_a_training_a_reason(root):
    found = set(refusals(root))
    assert len(found) > 60
    assert [place for place in sorted(found) if errors.stage_of(*place) is None] == []
    late = {place for place, stage in errors.TOLD_BY.items() if stage == errors.LATE}
    assert late == errors.LATE_BECAUSE.keys()
    raising = {file for file, _ in found} | {f"{file}:{function}" for file, function in found}
    assert errors.TOLD_BY.keys() <= raising  # none is listed that refuses nothing


def test_the_page_of_mistakes_is_what_they_give_now(root):
    assert (root / "docs/errors.md").read_text(encoding="utf-8") == errors.document()
