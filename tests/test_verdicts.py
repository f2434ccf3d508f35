"""What the numbers allow one to say: verdicts and lists, apart from the sentences they stand in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reversal.paper import phrases, verdicts

VERDICTS = ("more", "less", "unclear")
WORDS = {"more": "up for {}", "less": "down for {}", "unclear": "unclear for {}"}
FINDINGS = st.dictionaries(st.integers(0, 99).map("item{}".format), st.sampled_from(VERDICTS), min_size=1, max_size=6)


def named(item, found):
    return item


def judged(found):
    return {item: {"verdict": verdict} for item, verdict in found.items()}


def effects(correlation, *, enough=True, few=False):
    ends = {"estimate": correlation, "low": correlation - 0.05, "high": correlation + 0.05}
    return {"correlation": ends, "enough": enough, "few": few}


@given(FINDINGS)
def test_each_item_is_named_once_behind_its_own_verdict(found):
    said = str(verdicts.by_verdict(judged(found), WORDS, caller=named))
    behind = {}
    for word in said.replace(",", " ").split():
        if word in ("up", "down", "unclear"):
            verdict = {"up": "more", "down": "less"}.get(word, word)
        elif word.startswith("item"):
            assert word not in behind
            behind[word] = verdict
    assert behind == found


def test_verdicts_are_told_in_the_order_of_their_words_and_only_where_there_are_items():
    found = {"a": "unclear", "b": "less", "c": "less"}
    assert verdicts.by_verdict(judged(found), WORDS, caller=named) == "down for b and c, and unclear for a"
    assert verdicts.by_verdict(judged({"a": "more"}), WORDS, caller=named) == "up for a"


def test_a_verdict_without_words_counts_as_unclear():
    words = {"more": "up for {}", "unclear": "not up for {}"}
    assert verdicts.by_verdict(judged({"a": "less", "b": "more"}), words, caller=named) == "up for b and not up for a"


def test_a_list_escapes_what_is_not_escaped_yet_and_nothing_twice():
    coded = phrases.text("<b>")
    for said in ("<b>", coded):
        assert verdicts.each(["a", "b"], caller=lambda item, said=said: said) == coded + " and " + coded
        assert verdicts.by_verdict(judged({"a": "more"}), {"more": "{}"}, caller=lambda *_, said=said: said) == coded
        assert verdicts.by_model([{"label": "A"}], caller=lambda model, said=said: said) == coded + " in the A"


def test_models_of_which_the_same_is_said_are_named_together():
    models = [{"name": name, "label": name.upper()} for name in ("a", "b", "c")]
    said = {"a": "up", "b": "down", "c": "up"}
    told = verdicts.by_model(models, caller=lambda model: said[model["name"]])
    assert told == "up in the A and the C; down in the B"


def test_models_are_left_out_where_nothing_was_found_of_them():
    models = [{"name": "a"}, {"name": "b"}, {"name": "c"}]
    found = {"a": {"part": [1]}, "b": {"part": []}}
    assert verdicts.having(models, found) == models[:2]
    assert verdicts.having(models, found, "part") == models[:1]


@pytest.mark.parametrize("found", [effects(0.99, enough=False, few=True), effects(0.99, enough=False)])
def test_effects_that_can_not_be_compared_have_no_correlation(found):
    assert "r =" not in verdicts.correlation(found) and verdicts.enough({"a": found, "b": effects(0.9)}).keys() == {"b"}


@pytest.mark.parametrize(("taught", "asked", "clear"), [(0.95, 0.5, True), (0.5, 0.95, False), (0.7, 0.7, False)])
def test_a_route_is_of_the_question_if_people_taught_either_way_share_it_and_two_questions_do_not(taught, asked, clear):
    own = {"alike": {"name": effects(taught)}, "routes": {"p2d": effects(asked)}}
    assert verdicts.of_question(own) is clear
    assert verdicts.of_question(own | {"routes": {}}) is None
    assert verdicts.of_question(own | {"alike": {"name": effects(0.95, enough=False)}}) is None


def test_a_likeness_is_faint_only_where_a_significant_one_reaches_zero():
    def found(significant, low):
        return {"significant": significant, "low": low}

    assert verdicts.faint({"names": found(True, -0.1), "descriptions": found(True, 0.2)})
    assert not verdicts.faint({"names": found(True, 0.1), "descriptions": found(False, -0.2)})


@given(st.floats(-1, 1), st.floats(-1, 1))
def test_a_range_that_rounds_to_one_number_is_told_as_one(least, most):
    shown = phrases.ends({"least": least, "most": most})
    assert (" to " in shown) == (phrases.number(least) != phrases.number(most))
