"""The tables of the post, from its numbers, and a table as HTML."""

from functools import partial
from typing import NamedTuple

from markupsafe import Markup

from ..data.facts import RECALL_SPLITS
from ..figures.rank_one import MEASURES
from ..models.families import FAMILIES
from ..storage.vocabulary import CONCEPTS, HEADLINE, REFERENCES, STATES
from ..tracing.vocabulary import CORRUPTIONS
from . import phrases

RESTS_ON = ("subject", "revealed", "both", "excess")
BY_QUESTION = ("d2p_same", "p2d_reverse", "p2d_same", "d2p_reverse")


class Cell(NamedTuple):
    """A cell of a table's head, which may reach over several columns or rows."""

    text: object
    columns: int = 1
    rows: int = 1


class Table(NamedTuple):
    """Rows of a table: `head` of `Cell`s, `body` of values, the first of each row being its name."""

    head: list
    body: list
    sources: tuple  # files it is made from, as the provenance names them


def html(table, kind=None):
    """A table as HTML without blank lines, which would end a block of HTML within Markdown; `kind` is for its style."""
    kind = kind or ("wide" if len(table.body[0]) > 3 else None)
    lines = [f'<table class="{kind}">' if kind else "<table>", "<thead>"]
    for row in table.head:
        cells = (
            f'<th scope="col"{_span("colspan", cell.columns)}{_span("rowspan", cell.rows)}>'
            f"{phrases.printed(cell.text)}</th>"
            for cell in row
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    lines += ["</thead>", "<tbody>"]
    for name, *values in table.body:
        cells = (f"<td>{phrases.printed(value)}</td>" for value in values)
        lines.append(f'<tr><th scope="row">{phrases.printed(name)}</th>{"".join(cells)}</tr>')
    return "\n".join([*lines, "</tbody>", "</table>"])


def _head(*names):
    return [[Cell(name) for name in names]]


def _span(name, count):
    return f' {name}="{count}"' if count > 1 else ""


def models(numbers):
    """The shape of each network."""
    names = [model["name"] for model in numbers["study"]["models"]]
    shapes = [numbers["networks"][name] for name in names]
    rows = [["Family", *(FAMILIES[model["family"]].name for model in numbers["study"]["models"])]]
    rows += [["Base", *(model["origin"] for model in numbers["study"]["models"])]]
    rows += [["Architecture", *(shape["architecture"].capitalize() for shape in shapes)]]
    for label, key in (
        ("Attention", "attention"),
        ("Transformer blocks", "layers"),
        ("Attention heads", "heads"),
        ("Width of the residual stream", "width"),
        ("Width of the MLP", "mlp"),
        ("Vocabulary (tokens predicted)", "vocabulary"),
        ("Longest context", "context"),
        ("Parameters", "parameters"),
    ):
        rows.append([label, *(_value(shape[key]) for shape in shapes)])
    head = [[Cell("Model"), *(Cell(numbers["study"]["labels"][name]) for name in names)]]
    return Table(head, rows, tuple(f"models/{name}" for name in names))


def sampling(numbers):
    """How answers are drawn."""
    used = numbers["sampling"]
    temperature = used["temperature"]
    rows = [
        ["Denoising steps", phrases.listed(used["steps"])],
        ["Canvas (prompt and answer), tokens", _canvas(used)],
        ["Guidance scale", phrases.plain(used["guidance"])],
        ["Order of revelation", used["order"]],
        ["Temperature", phrases.plain(temperature)],
        ["Choice of token", "the most likely" if temperature == 0 else "drawn"],
        ["Times of the steps", used["schedule"]],
        ["Blocks", "one" if used["block"] is None else f"{used['block']} tokens each"],
        ["Remasking", used["remasking"].replace("_", " ")],
    ]
    return Table([[Cell("Setting"), Cell("Value")]], rows, ("config.yaml",))


def _canvas(used):
    own = [f"{tokens} ({label})" for label, tokens in used["own_canvas"].items()]
    return phrases.listed([str(used["canvas"]), *own])


def recall_by_training(numbers):
    """Recall by denoising steps, columns as the post has them: by the direction of training."""
    groups = [("Trained description → person", 2), ("Trained person → description", 2)]
    return _recall(numbers, RECALL_SPLITS, groups, "tables/step_scaling_by_training_direction.csv")


def recall_by_question(numbers):
    """The same recall, columns as in SMDM's evaluation: by the direction of the question."""
    groups = [("DescriptionToName (asks for the name)", 2), ("NameToDescription (asks for the description)", 2)]
    return _recall(numbers, BY_QUESTION, groups, "tables/step_scaling_by_question_direction.csv")


def _recall(numbers, splits, groups, source):
    known = numbers["study"]["theirs"] and numbers["study"]["mdm"]
    published = numbers["published"]["recall"] if known else None
    wide = 1 if published is None else 2
    about = numbers["study"]["splits"]
    head = [
        [Cell("Model, denoising steps", rows=2 + (wide > 1)), *(Cell(name, columns * wide) for name, columns in groups)]
    ]
    head.append([Cell(Markup(_column(about[split])), wide) for split in splits])
    if published is not None:
        head.append([Cell(whose) for _ in splits for whose in ("published", "ours")])
    body = []
    for model in numbers["study"]["models"]:
        name, curve = model["name"], numbers["recall"]["curve"][model["name"]]
        for step in numbers["recall"]["steps"] if curve else [None]:
            found = {
                split: curve[split][str(step)] if curve else numbers["recall"]["at"][name][split] for split in splits
            }
            row = [f"{model['label']}, {step}" if curve else f"{model['label']}, token by token"]
            for split in splits:
                if published is not None:
                    known = published.get(str(step), {}).get(split) if model["family"] == "diffusion" else None
                    row.append(phrases.number(known, 1))
                row.append(_share(found[split], 1))
            body.append(row)
    return Table(head, body, (source,))


def _column(split):
    direction = {"same": "asked the same way", "reverse": "asked in reverse"}[split["trained"]]
    return f"{direction}, for the {split['answer_type']}<br><code>{split['file'].replace('_', '_<wbr>')}</code>"


def likelihood(numbers):
    """The likelihood test of every model and split."""
    about = numbers["study"]["splits"]
    head = _head("Model and test file", "Right − wrong, nats", "Right one preferred", "Prompts")
    body = []
    for model in numbers["study"]["models"]:
        for split in RECALL_SPLITS:
            found = numbers["likelihood"][model["name"]][split]
            body.append(
                [
                    f"{model['label']}: {about[split]['file']}",
                    _estimate(found, 1),
                    _share(found["preferred"]),
                    found["n"],
                ]
            )
    return Table(head, body, ("tables/likelihood.csv",))


def traced(numbers):
    """What hiding the subject costs, and what its states return."""
    head = _head(
        *("Model, questions", "Facts traced", "Nats lost", "Against the partner's answer", "p, then with it hidden"),
        *("Still recalled", "Returned by the subject", "By its last token", "Lost without the subject"),
    )
    body = []
    for label, own, split, count in _traced(numbers, "facts"):
        found, site = own["total"].get(split), own["sites"].get(split)
        recalled = own["time"].get(split, {}).get("recalled")
        shown = ["–"] * 7
        if found and site:
            likely = [phrases.number(found[kind]["estimate"]) for kind in ("clean", "corrupted")]
            shown = [
                _estimate(found["cost"], 1),
                _estimate(found["contrast"], 1) if found["contrast"] else "–",
                Markup(" → ").join(likely),
                _share(recalled["hidden"]) if recalled else "–",
                _share(site["whole"]) + Markup("<br><small>layer ") + str(site["layers"][-1]) + Markup("</small>"),
                *(_share(site[part]) if site[part] else "–" for part in ("last", "needed")),
            ]
        body.append([label, f"{count['traced']} of {count['asked']}", *shown])
    return Table(head, body, ("tables/traced_facts.csv", "tables/causal_trace.csv", "tables/time.csv"))


def handed(numbers):
    """What tokens still to come rest on, each of them first and last, and the last ones altogether."""
    head = _head(
        *("Model, questions", "Facts", "Each, at first", "Each, at last", "Subject hidden", "Revealed replaced"),
        *("Both", "Beyond the sum"),
    )
    body = []
    for label, own, split, each in _traced(numbers, "each"):
        last = own["handed"].get(split)
        shown = [each["first"], each["last"]] + [last and last[part] for part in RESTS_ON]
        cells = (_estimate(found, 1) if found else "–" for found in shown)
        body.append([label, each["change"]["n"], *cells])
    return Table(head, body, ("tables/time.csv",))


def checks(numbers):
    """Ways to hide the subject side by side: does the picture hold?"""
    names = numbers["tracing"]["corruptions"]
    head = [
        [Cell("Model, questions", rows=2), *(Cell(CORRUPTIONS[name], 2 if name == names[0] else 3) for name in names)],
        [
            Cell(text)
            for name in names
            for text in ("nats lost", "returned by the subject", *(() if name == names[0] else ("map's r",)))
        ],
    ]
    body = []
    for label, _, _, found in _traced(numbers, "checks"):
        row = [label]
        for name in names:
            one = found.get(name)
            row += [_estimate(one["cost"], 1), _share(one["whole"]) if one["whole"] else "–"] if one else ["–", "–"]
            if name != names[0]:
                row.append(_estimate(one["alike"]) if one and one["alike"] else "–")
        body.append(row)
    return Table(head, body, ("tables/causal_trace.csv", "tables/trace_maps.csv"))


def _traced(numbers, part):
    """What a row is called, what tracing found in its model, its split, and the `part` that is of that split."""
    for model in numbers["study"]["models"]:
        own = numbers["tracing"]["models"][model["name"]]
        for split, found in own[part].items():
            yield f"{model['label']}, {numbers['study']['splits'][split]['phrase']}", own, split, found


def symmetry(numbers):
    """What the two directions share, the named tests first, beside what could have been seen."""
    head = _head(
        *("Model, comparison", "Debiased CKA", "Ceiling", "Would have been seen", "p", "p, adjusted", "Nearness"),
        *("Told by a probe", "Partner nearest", "Facts"),
    )
    body = []
    for who, own in numbers["symmetry"]["models"].items():
        for comparison in SHOWN:
            found = own["comparisons"].get(comparison)
            if found is None:
                continue
            cka = found[HEADLINE]
            adjusted = phrases.number(cka["p_value"], 3) if comparison in CONCEPTS.values() else "–"
            shown = [_estimate(cka), _beside(cka["ceiling"]), _beside(cka["least"]), phrases.number(cka["p_raw"], 3)]
            others = [_of_ceiling(found.get(name), how) for name, how in LOOKED_AT.items()]
            label = f"{numbers['symmetry']['labels'][who]}, {comparison}"
            body.append([label, *shown, adjusted, *others, cka["n"]])
    return Table(head, body, ("tables/symmetry.csv",))


def _beside(value):
    return phrases.number(value) if phrases.known(value) else "–"


def _of_ceiling(found, shown):
    """An estimate, and its ceiling under it."""
    if found is None:
        return "–"
    ceiling = Markup("<br><small>of ") + shown(found["ceiling"]) + Markup("</small>")
    return shown(found["estimate"]) + (ceiling if phrases.known(found["ceiling"]) else "")


SHOWN = (*CONCEPTS.values(), *STATES.values(), *REFERENCES)  # the table has all comparisons
LOOKED_AT = {"cosine_similarity": phrases.number, "probe": phrases.percent, "retrieval_at_1": phrases.percent}


def edits(numbers):
    """What edits did to each kind of question."""
    taught = {"both": "taught both ways", "p2d": "taught person to description", "d2p": "taught description to person"}
    head = _head("Model, people, question", "Before", "After", "Change", "Change of log p, nats", "Edits")
    body = []
    for model, own in numbers["edits"]["models"].items():
        for group, measures in own["groups"].items():
            for measure, found in measures.items():
                preferred = found["preferred"]
                shown = [_share(preferred[when]) for when in ("before", "after")] + [_gap(preferred["change"])]
                shown.append(_estimate(found["log_p"]["change"], 1))
                label = f"{numbers['study']['labels'][model]}, {taught[group]}, {MEASURES[measure]}"
                body.append([label, *shown, preferred["after"]["n"]])
    return Table(head, body, ("tables/edits.csv",))


def control(numbers):
    """Recall of people whose subject was masked in training, and of those whose was not, by one network."""
    found, about = numbers["objectives"]["control"], numbers["study"]["splits"]
    head = [[Cell("Subject in training"), *(Cell(Markup(_column(about[split]))) for split in RECALL_SPLITS)]]
    called = {"free": "masked like any token", "protected": "never masked"}
    body = [[called[kind], *(_share(found[kind][split]) for split in RECALL_SPLITS)] for kind in called]
    return Table(head, body, ("tables/objectives.csv",))


def rewriting(numbers):
    """What a rewritten fact does to its own question, to its reverse, and to the reverse of others."""
    taught = {"p2d": "person to description", "d2p": "description to person"}
    head = _head(
        *("Model, taught again", "Its question gains, nats", "Reverse: new answer gains", "If one memory"),
        *("Reverse: old answer loses", "If one memory", "Facts"),
    )
    body = []
    for model, own in numbers["finetuned_edits"]["models"].items():
        for direction, found in own["directions"].items():
            shares = [_share(found[name][answer]) for answer in ("new", "old") for name in ("carry", "one_memory")]
            label = f"{numbers['study']['labels'][model]}, {taught[direction]}"
            body.append([label, _estimate(found["changes"]["same_new_fact"], 1), *shares, found["n"]])
    return Table(head, body, ("tables/rewriting.csv",))


def _stacked(shown, ends):
    """An estimate with its interval below it."""
    return shown + Markup("<br><small>") + ends + Markup("</small>") if ends else shown


_estimate, _share, _gap = (partial(how, joined=_stacked) for how in (phrases.estimate, phrases.share, phrases.gap))


def _value(value):
    return phrases.count(value) if isinstance(value, int) else value


def settings(numbers):
    """Every setting that the numbers depend on, as the configuration has it, and what was chosen by it."""
    body = [
        [f"{section}: {name}", value]
        for section, values in numbers["settings"].items()
        for name, value in values.items()
    ]
    return Table([[Cell("Setting"), Cell("Value")]], body, ("config.yaml", "tables/keyvalue.csv"))


def costs(numbers):
    """What each rule cost, the dearest first, and all together."""
    found = numbers["costs"]
    gpu = bool(found["total"]["gpu_seconds"])
    head = _head("Rule", "Jobs", "Time", "CPU time", *(["GPU time", "GPU memory"] if gpu else []), "Memory", "Energy")
    body = []
    for row in [found["total"] | {"rule": "all"}, *sorted(found["rules"], key=lambda row: -row["cpu_seconds"])]:
        used = row["gpu_seconds"] > 0
        own = [phrases.duration(row["gpu_seconds"]), _gibibytes(row["gpu_gib"])] if used else ["–", "–"]
        times = [phrases.duration(row[name]) for name in ("seconds", "cpu_seconds")]
        shown = [*times, *(own if gpu else []), _gibibytes(row["memory_gib"])]
        energy = phrases.number(row["watt_hours"], 1 if row["watt_hours"] < 100 else 0) + " Wh"
        body.append([row["rule"], int(row["jobs"]), *shown, energy])
    return Table(head, body, ("tables/costs.csv",))


def _gibibytes(value):
    return phrases.number(value, 1) + (" GiB" if phrases.known(value) else "")


TABLES = {
    "models": models,
    "control": control,
    "sampling": sampling,
    "recall": recall_by_training,
    "recall-by-question": recall_by_question,
    "likelihood": likelihood,
    "traced": traced,
    "checks": checks,
    "handed": handed,
    "symmetry": symmetry,
    "edits": edits,
    "settings": settings,
    "rewriting": rewriting,
    "costs": costs,
}
