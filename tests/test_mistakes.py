"""Wrong data and model files: each is answered by one line that names what is wrong; and the page that lists them."""

import pytest

from docs import mistakes


@pytest.mark.parametrize(
    "mistake, expected", [case[1:] for case in mistakes.FILES], ids=[case[0] for case in mistakes.FILES]
)
def test_a_mistake_is_told_in_one_line(mistake, expected):
    line = mistakes.told(mistake)
    assert expected in line and "\n" not in line


def test_the_page_of_mistakes_is_what_they_give_now(root):
    assert (root / "docs/errors.md").read_text(encoding="utf-8") == mistakes.document()
