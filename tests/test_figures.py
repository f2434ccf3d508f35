import functools
import importlib
import itertools
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from xml.etree import ElementTree

import jinja2
import numpy as np
import pandas as pd
import pytest
import trace_fixtures
from docutils.core import publish_parts
from matplotlib.backends.backend_agg import RendererAgg

from reversal.data.facts import KNOWN, SPLITS, Fact, Row
from reversal.figures import (
    article,
    curse,
    data,
    denoising,
    lens,
    objectives,
    read,
    recall,
    registry,
    sheet,
    storage,
    style,
    symmetry,
    tracing,
)
from reversal.recall import files as completion_files
from reversal.storage import similarity as statistics
from reversal.storage import vocabulary as storage_vocabulary
from reversal.tracing import readout_tables, time_tables, vocabulary
from reversal.tracing import tables as trace_tables

MODELS = {"mdm": "diffusion", "ar": "autoregressive"}
RECALL = ("d2p_same", "d2p_reverse", "p2d_same", "p2d_reverse")
PLAIN = ("Ada Moss", "the baker who found the green door")
ODD = ("$x$ <script>_%", r"O'Neil & Sons \frac{1}{2} 李雷 #1 ^_{a}$")
LONG = ("Maximiliana-Theodora" * 4, "the " + "extraordinarily long-winded " * 12 + "clerk")


def row(split, fact, name, description, template=30):
    """A question of a split, made of plain words around the name and the description."""
    subject, answer = (name, description) if SPLITS[split].direction == "p2d" else (description, name)
    prompt = f"We know {subject} as" if template % 2 else f"Of {subject} it is said:"
    start = prompt.index(subject)
    return Row(fact, template, prompt, f" {answer}", (start, start + len(subject)), (1, 1 + len(answer)))


def people(pair, count=3):
    return {f"p2d-{i:02}": (f"{pair[0]}{i or ''}", f"{pair[1]}{i or ''}") for i in range(count)}


def questions(pair, count=3):
    return {
        split: [
            row(split, fact, *about, template) for fact, about in people(pair, count).items() for template in (30, 31)
        ]
        for split in SPLITS
    }


def revealed(text, steps, start, rng):
    """A word a token, revealed in random order, `steps` steps in all; end tokens after them."""
    tokens = [f" {word}" for word in text.split(" ") if word] + ["<eos>"] * 3
    order = rng.permutation(len(tokens))
    when = {place: i * steps // len(tokens) for i, place in enumerate(order)}
    return [[start + i, token, when[i], 0.25 + 0.5 * rng.random()] for i, token in enumerate(tokens)]


def completions(pair, models=MODELS, steps=(1, 4), seeds=(1,), count=3):
    rng = np.random.default_rng(0)
    records = []
    for model, family in models.items():
        for seed in seeds:
            for split in RECALL:
                for number in steps if family == "diffusion" else (None,):
                    for i, row in enumerate(questions(pair, count)[split]):
                        right = family == "diffusion" or split.endswith("same") or i % 3 == 0
                        said = row.completion if right else " nobody\nat all"
                        shown = revealed(said, number or 1, 7, rng)
                        values = (row.fact, split, number, row.prompt, row.completion, said, right, shown)
                        records.append((model, seed, *values))
    return pd.DataFrame(records, columns=["model", "seed", *completion_files.COLUMNS[: len(values)]])


def likelihood(seeds=(1,), models=MODELS, splits=RECALL):
    records = [
        (model, seed, split, 4.0 + seed, 2.0, 7.0, 0.75) for model in models for seed in seeds for split in splits
    ]
    columns = ["model", "seed", "split", "difference", "ci_low", "ci_high", "right_more_likely"]
    return pd.DataFrame(records, columns=columns)


def scaling(seeds=(1,), models=MODELS, splits=RECALL):
    records = []
    for model, family in models.items():
        for seed in seeds:
            for split in splits:
                for steps in (1, 2, 4) if family == "diffusion" else (None,):
                    share = 0.5 if steps is None else steps / 5
                    records.append((model, seed, split, steps, share, share - 0.1, share + 0.1))
    columns = ["model", "seed", "split", "steps", "accuracy", "ci_low", "ci_high"]
    return pd.DataFrame(records, columns=columns)


def history(seeds=(1,), models=MODELS):
    records = [
        (model, seed, step, 5 / (1 + step) + 0.1 * seed) for model in models for seed in seeds for step in range(50)
    ]
    return pd.DataFrame(records, columns=["model", "seed", "step", "loss"])


def facts_of(pair):
    return [
        Fact(f"{group}-{i}", group, f"{pair[0]}{i or ''}", pair[1], (pair[1],), (pair[1],))
        for group in ("p2d", "d2p", "both")
        for i in range(2)
    ]


def training_rows(pair, facts):
    splits = {"p2d": ["p2d_same"], "d2p": ["d2p_same"], "both": ["both_p2d", "both_d2p"]}
    return [row(split, fact.id, fact.name, pair[1], 0) for fact in facts for split in splits.get(fact.group, ())]


def split_rows(pair, facts):
    return {
        name: [row(name, fact.id, fact.name, pair[1]) for fact in facts if fact.group == split.group]
        for name, split in SPLITS.items()
    }


def make_traces(pair, steps=3, layers=4, sign=1.0):
    """A trace of one fact by (model, split)."""
    roles = [*tracing.ROLES[:4], *tracing.ROLES[5:-1], *vocabulary.JOINT_ROLES]
    tokens = ["Well", *(f" {word}" for word in pair[0].split()), " is", " known", " as", " the", "<eos>"]
    about = {"prompt": pair[0], "tokens": (tokens + [" word"] * len(roles))[: len(roles) - 2], "prompt_tokens": 6}
    about |= {"answer": [6, 9]}
    made = trace_fixtures.make_trace(pair[0], roles=roles, steps=steps, layers=layers, metadata=about)
    if sign < 0:
        arrays = {
            name: 2 * trace_fixtures.CORRUPTED - array for name, array in made.arrays.items() if "restored" in name
        }
        made = made._replace(arrays=made.arrays | arrays)
    return {("mdm", "p2d_same"): [made], ("mdm", "p2d_reverse"): [made], ("ar", "p2d_same"): [made]}


PANELS = (("mdm", "p2d_same"), ("mdm", "p2d_reverse"), ("mdm", "d2p_reverse"), ("ar", "p2d_same"))


@functools.cache
def trace_table(seeds=(1,), layers=2, corruption="swap"):
    """A table of traces of three facts; copy it before changing it."""
    kinds, tables = {corruption: ["state", "mlp", "attn"]}, []
    for model, seed in itertools.product(("mdm", "ar"), seeds):
        rng = np.random.default_rng(seed)
        splits = [split for name, split in PANELS if name == model]
        roles = [*tracing.ROLES[:-1], *vocabulary.JOINT_ROLES[1:]] if model == "mdm" else trace_fixtures.SOME_ROLES
        own = {
            split: [trace_fixtures.make_trace(fact, kinds=kinds, roles=roles, layers=layers, rng=rng) for fact in "abc"]
            for split in splits
        }
        tables.append(trace_tables.aggregate(own, model=model, seed=seed))
    return pd.concat(tables)


@functools.cache
def time_table(layers=2):
    """A table of when the subject is needed; copy it before changing it."""
    parts = [
        time_tables.aggregate(
            trace_fixtures.make_time_values("abc", diffusion=model == "mdm", layers=layers),
            model=model,
            seed=1,
            split=split,
        )
        for model, split in PANELS
    ]
    return pd.concat(parts)


def readout_table(average, make_values, splits=PANELS, **options):
    """A table of the logit lens or of heads."""
    values = make_values("abc", **options)
    return pd.concat([average(values, model=model, seed=1, split=split) for model, split in splits])


@functools.cache
def make_similarities(seed, base):
    """Tables of `symmetry`, of spectra and of principal components for made-up vectors of ten facts, in this order.

    A base has no values.
    """
    rng = np.random.default_rng(seed)
    sides = sorted({side for pair in storage_vocabulary.PAIRS.values() for side in pair})
    arrays = {side: rng.random((4, 10, 5)) for side in sides if not base or "value" not in side}
    options = {"pairs": tuple(storage_vocabulary.PAIRS), "groups": np.zeros(10), "components": 2}
    compared = statistics.compare_all(arrays, **options, permutations=90, rng=rng)
    points = statistics.pca_pairs(arrays, pairs=storage_vocabulary.SHOWN_COMPARISONS)
    return compared, statistics.spectra(arrays), points


def similarity_table(models=tuple(MODELS), layers=("peak", "0", "2"), stages=("seed_1", "base"), part=0):
    """A table of `symmetry`, or another `part` of `make_similarities`, in which models are alike."""
    parts = []
    for name, stage, (number, layer) in itertools.product(models, stages, enumerate(layers)):
        about = {"model": name, "stage": stage, "layer": layer, "layer_forward": 0, "layer_reverse": number}
        parts.append(make_similarities(number, stage == "base")[part].assign(**about))
    table = pd.concat(parts, ignore_index=True)
    return table if part else statistics.adjust_for_layers(table)


def drop_unmoved(table):
    """A table of `make_similarities` in which no value of a name moved, and one model has no site for values."""
    column = table["space"] if "space" in table else table["comparison"]
    of_name = column.isin(["value, reverse", storage_vocabulary.PRIMARY_COMPARISONS["name"]])
    return table[~of_name & ~(column.str.contains("value") & (table.model == "ar"))]


def all_questions(pair):
    return [question for some in questions(pair).values() for question in some]


def reference_table(run, table="objectives"):
    return read.read_table(Path(style.__file__).parents[3] / f"paper/reference/{run}/{table}.csv")


def edits(table, models=MODELS):
    """A table of edits of five seeds."""
    return reference_table("seeds", table).query("model in @models")


def select_mdm(table):
    return table[table.model == "mdm"]


def with_nans(table, *columns):
    return table.assign(**dict.fromkeys(columns, np.nan))


TWO = {
    "mdm-one": "diffusion",
    "mdm-with-a-very-long-name": "diffusion",
    "ar": "autoregressive",
    "ar-b": "autoregressive",
}
# What each kind of input is made of, for people with this name and description; a figure may have its own.
INPUTS = {
    "completions": completions,
    "example_completions": lambda pair: select_mdm(completions(pair)),
    "questions": lambda pair: all_questions(pair),
    "histories": lambda pair: history(),
    "traces": lambda pair: make_traces(pair),
    "facts": facts_of,
    "training_rows": lambda pair: training_rows(pair, facts_of(pair)),
    "splits": lambda pair: split_rows(pair, facts_of(pair)),
    "published": lambda pair: None,
    "step_scaling": lambda pair: scaling(),
    "likelihood": lambda pair: likelihood(),
    ("base_knowledge", "step_scaling"): lambda pair: scaling(splits=KNOWN),
    ("base_knowledge", "likelihood"): lambda pair: likelihood(splits=KNOWN),
    "causal_trace": lambda pair: trace_table(),
    "time": lambda pair: time_table(),
    "logit_lens": lambda pair: readout_table(readout_tables.average_lens, trace_fixtures.make_lens_values),
    "attention_heads": lambda pair: readout_table(readout_tables.average_heads, trace_fixtures.make_head_values),
    "attribution": lambda pair: readout_table(
        readout_tables.average_attribution, trace_fixtures.make_attribution_values
    ),
    "symmetry": lambda pair: similarity_table(),
    "symmetry_spectra": lambda pair: similarity_table(part=1),
    "symmetry_pca": lambda pair: similarity_table(part=2),
    "rank_one_edits": lambda pair: edits("rank_one_edits"),
    "storage_tests": lambda pair: reference_table("storage", "storage_tests"),
    "finetuned_edits": lambda pair: edits("finetuned_edits"),
    "gradients": lambda pair: edits("gradients"),
    "objectives": lambda pair: reference_table("objectives"),
    ("epochs", "objectives"): lambda pair: reference_table("epochs"),
    "claims": lambda pair: pd.DataFrame(
        [
            (claim, run, verdict)
            for claim, verdict in (("names-reverse", "holds"), ("ar-names-reverse", "not measured"))
            for run in ("this", "seeds")
        ],
        columns=["claim", "run", "verdict"],
    ),
    ("blocks", "objectives"): lambda pair: reference_table("blocks"),
    "block_spans": lambda pair: reference_table("blocks", "block_spans"),
    "claim_list": lambda pair: [{"id": "names-reverse", "short": "names in reverse"}, {"id": "ar-names-reverse"}],
}
OPTIONS = {"models": MODELS, "order": "confidence", "protected": False}


def draw(name, pair, change=lambda value: value):
    """A figure of the registry, drawn from made-up inputs, each of them changed by a function."""
    figure = registry.FIGURES[name]
    module, function = figure.function.split(".")
    makers = [INPUTS.get((name, kind)) or INPUTS[kind] for kind in figure.inputs]
    options = {option: OPTIONS[option] for option in figure.options}
    drawn = getattr(importlib.import_module(f"reversal.figures.{module}"), function)
    return drawn(*(change(make(pair)) for make in makers), **options)


NAMING = (
    "first_screen",
    "four_masks",
    "reversal_curse",
    "denoising_step",
    "timeline",
    "dataset",
    "trace_facts",
)
EDGES = {
    "only a diffusion model asked": lambda: article.first_screen(select_mdm(completions(PLAIN)), models=MODELS),
    "three seeds, four models": lambda: curse.reversal_curse(
        completions(PLAIN, models=TWO, seeds=(1, 2, 3)), likelihood((1, 2, 3), TWO), models=TWO
    ),
    "no autoregressive model": lambda: curse.reversal_curse(
        select_mdm(completions(PLAIN)), select_mdm(likelihood()), models={"mdm": "diffusion"}
    ),
    "one step": lambda: denoising.denoising_step(select_mdm(completions(PLAIN, steps=(1,))), all_questions(PLAIN)),
    "a thousand steps": lambda: denoising.timeline(select_mdm(completions(PLAIN, steps=(1000,))), all_questions(PLAIN)),
    "an answer that never comes": lambda: denoising.timeline(
        select_mdm(completions(PLAIN)).assign(correct=False, generation="x"), [row("p2d_same", "p2d-00", "No", "one")]
    ),
    "losses of many runs": lambda: recall.training_curves(history((1, 2), TWO), models=TWO),
    "a loss that is lost": lambda: recall.training_curves(with_nans(history(), "loss"), models=MODELS),
    "three seeds": lambda: recall.step_scaling(scaling((1, 2, 3), TWO), models=TWO),
    "published values": lambda: recall.step_scaling(
        scaling(), models=MODELS, published=pd.DataFrame({"steps": [1, 2], **dict.fromkeys(RECALL, 40.0)})
    ),
    "harmful restorations": lambda: tracing.trace_facts(make_traces(PLAIN, sign=-1), models=MODELS),
    "one layer, one step": lambda: tracing.trace_facts(make_traces(PLAIN, steps=1, layers=1), models=MODELS),
    "forty layers": lambda: tracing.trace_average(trace_table(layers=40).query("kind != 'attn'"), models=MODELS),
    "effects unknown": lambda: tracing.trace_average(
        with_nans(trace_table(), "mean", "ci_low", "ci_high"), models=MODELS
    ),
    "modules over forty layers": lambda: tracing.corrupted_steps(time_table(layers=40), models=MODELS),
    "taught one way": lambda: tracing.trace_directions(trace_table().query("split == 'p2d_same'"), models=MODELS),
    "by the score that families do not share": lambda: tracing.handover(
        time_table().query("reading != 'sequential'"), models=MODELS
    ),
    "thirty layers read of three tests": lambda: lens.logit_lens(
        readout_table(
            readout_tables.average_lens,
            trace_fixtures.make_lens_values,
            splits=[("mdm", split) for split in RECALL[:3]],
            layers=30,
        ),
        models=MODELS,
    ),
    "thirty-two heads": lambda: lens.attention_heads(
        readout_table(readout_tables.average_heads, trace_fixtures.make_head_values, layers=32, heads=32), models=MODELS
    ),
    "revealed at once": lambda: tracing.handover(time_table().query("revealed == 0"), models=MODELS),
    "ten layers of one base": lambda: symmetry.symmetry_layers(
        similarity_table(models=("mdm",), layers=tuple(map(str, range(10))), stages=("base",)), models=MODELS
    ),
    **{
        f"{function.__name__} without values of names, and of one model": functools.partial(
            function, *(drop_unmoved(similarity_table(part=part)) for part in parts), models=MODELS
        )
        for function, parts in (
            (symmetry.symmetry, [0]),
            (symmetry.symmetry_pca, [2, 0]),
            (symmetry.symmetry_spectra, [1, 0]),
        )
    },
    "no site to edit": lambda: storage.rank_one_edits(edits("rank_one_edits").head(0).astype(object), models=MODELS),
    "spectra of one model without a base or a peak": lambda: symmetry.symmetry_spectra(
        *(similarity_table(("ar",), ("0", "2"), ("seed_1",), part) for part in (1, 0)), models=MODELS
    ),
    "edits of a base": lambda: storage.rank_one_edits(
        edits("rank_one_edits").query("group == 'both'").assign(group="known"), models=MODELS
    ),
    "edits unknown": lambda: storage.rank_one_edits(
        with_nans(edits("rank_one_edits"), "value", "ci_low", "ci_high"), models=MODELS
    ),
}


def write_svg(drawing, folder):
    style.write(drawing.figure, folder / "figure.svg")
    return (folder / "figure.svg").read_bytes()


class Text(NamedTuple):
    """A line of text in the PNG: its type's size in points, and its left, lower, right and upper edge in points."""

    text: str
    size: float
    edges: tuple


@contextmanager
def record_texts(texts):
    """While it lasts, `texts` gathers what is drawn into a PNG."""
    draw = RendererAgg.draw_text

    def note(self, gc, x, y, text, prop, angle, *rest, **options):
        width, height, descent = self.get_text_width_height_descent(text, prop, False)
        x, y = float(x), self.height - float(y)
        edges = (x - height, y, x, y + width) if angle else (x, y - descent, x + width, y - descent + height)
        texts.append(Text(text, prop.get_size_in_points(), tuple(edge * 72 / style.DPI for edge in edges)))
        return draw(self, gc, x, self.height - y, text, prop, angle, *rest, **options)

    RendererAgg.draw_text = note
    try:
        yield
    finally:
        RendererAgg.draw_text = draw


def check(drawing, folder):
    """What holds for every figure: type that is large enough, all of it on the page. Returns the texts."""
    texts = []
    with record_texts(texts):
        style.write(drawing.figure, folder / "figure.png")
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    width, height = drawing.figure.get_size_inches() * 72
    assert width in (pytest.approx(510), pytest.approx(300))  # 680 pixels, or what a phone shows whole
    assert texts
    for text, size, (left, low, right, high) in texts:
        assert size >= 8, text
        assert left >= -0.5 and right <= width + 0.5, text
        assert low >= -0.5 and high <= height + 0.5, text
    return [text for text in texts if text.text.strip()]


def overlapping(texts):
    """Pairs of texts that share more than a hair's breadth; type of one line may touch that of the next."""
    left, low, right, high = np.array([text.edges for text in texts]).T
    width = np.minimum(right[:, None], right) - np.maximum(left[:, None], left)
    height = np.minimum(high[:, None], high) - np.maximum(low[:, None], low)
    return [(texts[i].text, texts[j].text) for i, j in np.argwhere((width > 1) & (height > 2)) if i < j]


@pytest.mark.parametrize("name", registry.FIGURES)
def test_a_registered_figure_is_readable_reproducible_and_has_an_alt_text(name, tmp_path):
    drawing = draw(name, PLAIN)
    assert write_svg(drawing, tmp_path) == write_svg(draw(name, PLAIN), tmp_path)
    assert not overlapping(check(drawing, tmp_path))
    alt = read.fill_alt_text(name, registry.FIGURES[name].alt, drawing.alt_values)
    assert len(alt) > 60 and "nan" not in alt.split()


def test_the_report_shows_titles_and_captions_as_they_are_written(root):
    template = jinja2.Template((root / "paper/report/figure.rst").read_text())
    for name, figure in registry.FIGURES.items():
        shown = publish_parts(template.render(snakemake=SimpleNamespace(params=figure)), writer="html")["body"]
        assert "system-message" not in shown
        text = " ".join("".join(ElementTree.fromstring(f"<div>{shown}</div>").itertext()).split())
        assert text.replace("’", "'") == f"{figure.title}. {figure.caption}", name


def remove_rows(value):
    """An input without its rows."""
    if isinstance(value, dict):
        return {key: [] for key in value}
    return value.head(0) if isinstance(value, pd.DataFrame) else value and []


@pytest.mark.parametrize("name", registry.FIGURES)
def test_a_figure_without_data_says_so(name, tmp_path):
    drawing = draw(name, PLAIN, remove_rows)
    assert check(drawing, tmp_path)
    assert "{" not in read.fill_alt_text(name, registry.FIGURES[name].alt, drawing.alt_values)


def test_a_study_has_the_figures_that_its_models_and_facts_allow():
    every = registry.select_figures(["trained", "diffusion"])
    assert "base_knowledge" not in every and {"timeline", "dataset", "trace_directions"} <= every.keys()
    assert {"timeline", "handover", "trace_directions"}.isdisjoint(registry.select_figures(["trained"]))
    untrained = registry.select_figures(["untrained", "diffusion"])
    assert {"base_knowledge", "timeline"} <= untrained.keys()
    assert {"dataset", "trace_directions"}.isdisjoint(untrained)


@pytest.mark.parametrize("name", NAMING)
@pytest.mark.parametrize("pair", [ODD, LONG], ids=["odd", "long"])
def test_any_name_is_drawn_as_it_is_written(name, pair, tmp_path):
    drawing = draw(name, pair)
    check(drawing, tmp_path)
    if pair is ODD:
        text = "".join(ElementTree.fromstring(write_svg(drawing, tmp_path)).itertext())
        names = ["$x$", "<script>_%"] if name == "trace_facts" else ["O'Neil", "&", r"\frac{1}{2}", "李雷"]
        assert all(part in text for part in names)


@pytest.mark.parametrize("edge", EDGES)
def test_edge_cases_are_drawn(edge, tmp_path):
    assert not overlapping(check(EDGES[edge](), tmp_path))


def test_control_characters_and_lone_surrogates_become_visible(tmp_path):
    assert style.plain("a\nb\tc\x00\x7f\ud800\uffff") == "a↵b→c␀\ufffd\ufffd\ufffd"
    ElementTree.fromstring(write_svg(draw("timeline", ("Ada\x01\x1b", "the\x0b clerk\x85")), tmp_path))


def test_wrapping_keeps_every_letter_and_no_line_is_too_long():
    pieces = [("one two ", "a"), ("three, fourteenlettersandmore", "b"), (". end", None)]
    width = 10 * sheet.LETTER * 8
    lines = sheet.wrap(pieces, width, size=8)
    assert all(sheet.width_of("".join(text for text, _ in line), 8) <= width + 1e-9 for line in lines)
    joined = "".join(text for line in lines for text, _ in line)
    assert joined.replace(" ", "") == "".join(text for text, _ in pieces).replace(" ", "")
    cut = sheet.wrap(pieces, width, size=8, lines=2)
    assert len(cut) == 2 and cut[-1][-1][0].endswith("…")


def test_an_answer_is_found_whatever_its_spaces_and_case():
    assert denoising.find_answer_tokens(["It", " is", " The", " ba", "ker", "."], "the baker") == {2, 3, 4}
    assert denoising.find_answer_tokens(["the", "baker"], "The baker") == {0, 1}
    assert denoising.find_answer_tokens([" nobody"], "the baker") == set()


def test_an_end_marker_is_not_part_of_the_generated_text():
    assert style.is_end("<eos>", "Ada Moss") and style.is_end("</s>", "")
    assert not style.is_end("<script>", "$x$ <script>") and not style.is_end(" Moss", "")


def test_the_generation_shown_is_correct_and_its_answer_is_marked():
    table = select_mdm(completions(PLAIN))
    example = denoising.choose_example(table, all_questions(PLAIN))
    steps = [token.step for token in example.tokens if token.in_answer]
    assert (example.first, example.last) == (min(steps), max(steps))
    said = "".join(token.text for token in example.tokens if token.in_answer).strip()
    assert said.startswith(PLAIN[1])
    assert min(steps) <= denoising.choose_middle_step(example) <= max(steps)


def test_the_example_shows_the_curse_if_there_is_one():
    table = completions(PLAIN)
    rows = {family: table[(table.model == name) & table.split.str.startswith("p2d")] for name, family in MODELS.items()}
    example = curse.choose_example(rows)
    right = {key: bool(found.correct) for key, found in example.items()}
    assert right == curse.CURSE_PATTERN
    assert len({found.fact for found in example.values()}) == 1
    assert curse.choose_example({}) is None


def test_models_differ_without_colour():
    found = style.choose_looks(TWO)
    assert len({look.marker for look in found.values()}) == len({look.line for look in found.values()}) == len(TWO)
    assert [look.label for look in style.choose_looks(MODELS).values()] == ["MDM", "AR"]


def test_a_text_that_looks_like_a_missing_value_stays_a_text(tmp_path):
    (tmp_path / "table.csv").write_text("token,value\nnull,1\nNA,\n")
    table = read.read_table(tmp_path / "table.csv", model="mdm")
    assert list(table.token) == ["null", "NA"] and np.isnan(table.value[1]) and list(table.columns)[0] == "model"


def test_shares_and_numbers_do_not_round_to_what_they_are_not():
    shares = {0.0: "0%", 0.004: "< 1%", 0.5: "50%", 0.997: "> 99%", 1.0: "100%", -0.001: "0%", -0.02: "−2%", None: "–"}
    assert {share: style.percent(share) for share in shares} == shares
    assert [style.number(value, 1) for value in (-0.04, -1.25, 3.0)] == ["0.0", "−1.2", "3.0"]
    assert [style.pluralize(count, "layer") for count in (0, 1, 2.0)] == ["0 layers", "1 layer", "2 layers"]


def test_the_settings_of_matplotlib_and_a_figure_do_not_change_each_other(tmp_path):
    matplotlib = importlib.import_module("matplotlib")
    plain = write_svg(draw("rank_one_edits", PLAIN), tmp_path)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.hashsalt": None}):
        before = dict(matplotlib.rcParams)
        assert write_svg(draw("rank_one_edits", PLAIN), tmp_path) == plain
        assert dict(matplotlib.rcParams) == before


def test_roles_that_recover_nothing_are_named():
    table = trace_table().copy()
    table.loc[table.role == "prior prompt", "mean"] = 0.0
    assert tracing.trace_average(table, models=MODELS).alt_values["idle"] == "prior prompt"


def test_the_main_corruption_is_drawn_if_there_is_no_swap():
    other = trace_table(corruption="gaussian")
    drawn, alone, both = (
        tracing.trace_average(table, models=MODELS).alt_values
        for table in (trace_table(), other, pd.concat([trace_table(), other.assign(mean=99.0)]))
    )
    assert drawn == alone == both


def test_control_people_are_never_masked_only_if_protected(tmp_path):
    facts = [*facts_of(PLAIN), Fact("control-0", "p2d_control", "Bea Field", PLAIN[1], (PLAIN[1],), (PLAIN[1],))]
    for protected in (True, False):
        drawing = data.dataset(facts, training_rows(PLAIN, facts), split_rows(PLAIN, facts), protected=protected)
        assert protected == any("never masked" in text.text for text in check(drawing, tmp_path))


def test_every_objective_of_the_reference_run_is_described_in_its_own_words():
    table = reference_table("objectives")
    words = {row.model: objectives.describe_objective(row) for row in table.itertuples()}
    assert len(set(words.values())) == len(words)
    recalled = objectives.objectives(table, models={}).alt_values["recalled"]
    assert all(f"{description}: " in recalled for description in words.values())


def test_figures_need_no_torch():
    modules = ", ".join(sorted(file.stem for file in Path(style.__file__).parent.glob("[a-z]*.py")))
    code = f"import sys; from reversal.figures import {modules}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=Path(style.__file__).parents[2], check=True)
