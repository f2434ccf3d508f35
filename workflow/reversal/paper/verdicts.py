"""What the numbers allow one to say: the verdicts and the lists from which the template makes its sentences."""

from markupsafe import Markup

from . import phrases

TAKEN = 0.5  # the least share of edits


def each(items, joined=" and ", *, caller):
    """`a, b and c`: what the call block says of each item."""
    said = (caller(*item) if isinstance(item, tuple) else caller(item) for item in items)
    return phrases.listed([one.strip() for one in said], joined)


def by_verdict(found, words, by="verdict", *, caller):
    """`clearly more for a and b, and not clearly for c`: items that share a verdict are named together.

    `found` is {item: finding}, `words` {verdict: words with {} for its items} in the order of speech; a verdict without
    words counts as "unclear". The call block says how an item is called.
    """
    groups = {verdict: [] for verdict in words}
    for item, finding in found.items():
        groups[finding[by] if finding[by] in words else "unclear"].append((item, finding))
    said = [Markup(words[one]).format(each(items, caller=caller)) for one, items in groups.items() if items]
    return phrases.listed(said, ", and " if len(found) > 2 else " and ")


def by_model(models, *, caller):
    """`this in the MDM; that in the AR`: models of which the call block says the same are named together."""
    said = {}
    for model in models:
        said.setdefault(phrases.printed(caller(model).strip()), []).append(model["label"])
    return phrases.listed([text + " in the " + phrases.listed(who, " and the ") for text, who in said.items()], "; ")


def having(models, found, part=None):
    """Of a study's models those of which something was found, or a part of it."""
    return [one for one in models if one["name"] in found and (part is None or found[one["name"]].get(part))]


def parts(found, name):
    """The same part of each finding that has it: {item: part}."""
    return {item: one[name] for item, one in found.items() if one.get(name) is not None}


def correlation(found):
    """`r = 0.93 [0.88, 0.98]`, or why there is none to tell."""
    if found["enough"]:
        return "r = " + phrases.estimate(found["correlation"])
    return "too few facts" if found["few"] else "the maps tell nothing but noise"


def enough(alike):
    """The comparisons of maps that have enough facts."""
    return {name: found for name, found in alike.items() if found["enough"]}


def of_question(own):
    """Whether the route of recall is clearly of the question rather than of the way facts were taught; None: unknown.

    It is if maps of one question, about people taught either way, are more alike than maps of the two questions to the
    same people, whichever of each are compared.
    """
    taught, asked = (list(own[name].values()) for name in ("alike", "routes"))
    if not taught or not asked or not all(found["enough"] for found in (*taught, *asked)):
        return None
    return min(one["correlation"]["low"] for one in taught) > max(one["correlation"]["high"] for one in asked)


def faint(concepts):
    """Whether a likeness beyond chance may yet be nothing among other facts."""
    return any(found["significant"] and found["low"] <= 0 for found in concepts.values())


def takes(share):
    """Whether so many edits take that the reverse question says something."""
    return share >= TAKEN


def disturbances(rewritten):
    """Of a model's rewritten directions those whose lesson harms the other direction and does not reach it."""
    return {direction: found for direction, found in rewritten["directions"].items() if found["disturbed"]}


_SAID = (each, by_verdict, by_model, having, parts, correlation, enough, of_question, faint, takes, disturbances)
FUNCTIONS = {function.__name__: function for function in _SAID}
