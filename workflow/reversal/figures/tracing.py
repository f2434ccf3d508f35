"""Where facts come from inside the models: causal traces of single facts, on average, and over steps."""

from functools import partial
from typing import NamedTuple

import numpy as np
from matplotlib.ticker import MaxNLocator

from ..data.facts import SPLITS
from ..tracing import vocabulary
from .sheet import MARGIN, Sheet
from .style import (
    BLUE,
    FAINT,
    GREEN,
    HEAT,
    PALE,
    POINTS,
    SIGNED,
    SMALL,
    TRAINED,
    VERMILLION,
    Drawing,
    blank,
    first_of,
    ink_on,
    looks,
    nothing,
    offsets,
    plain,
    shown_token,
    styled,
)

WHOLE = "whole subject"
AFTER = vocabulary.ROLES.index("last subject") + 1
ROLES = [*vocabulary.ROLES[:AFTER], WHOLE, *(role for role in vocabulary.ROLES[AFTER:] if role != WHOLE)]
KINDS = {name: vocabulary.KINDS[name].label for name in vocabulary.WHOLE}
# The same people asked both ways, where they were traced; otherwise what there is.
FORWARD = ("p2d_same", "both_p2d", "d2p_reverse")
REVERSE = ("p2d_reverse", "both_d2p", "d2p_same")
MASK = "M"
MOST_TOKENS, MOST_STEPS, MOST_LAYERS = 34, 3, 4
PITCH, GUTTER = 9.8, 66  # of the tokens of a fact, in points
NO_TRACES = "No fact was traced."
EFFECT = "probability of the answer regained"


class Panel(NamedTuple):
    """A model and the split it is traced on, and what to call that."""

    model: str
    split: str
    title: str


def panels(traced, models):
    """The `Panel`s to set side by side, of those in `traced` ((model, split), …): forward and reverse of the first
    diffusion model; the first autoregressive model's forward, or its reverse where that alone was traced."""
    chosen = []
    for family in ("diffusion", "autoregressive"):
        name, ways = first_of(models, family), []
        for splits, way in ((FORWARD, "forward"), (REVERSE, "reverse")):
            split = next((split for split in splits if (name, split) in traced), None)
            if split:
                title = f"{looks(models)[name].label} {way}: {TRAINED[SPLITS[split].direction]}"
                ways.append(Panel(name, split, title))
        chosen += ways if family == "diffusion" else ways[:1]
    return chosen


@styled
def trace_facts(traces, *, models, kind="state", score="probability"):
    """One fact's traces, token by layer, a panel a step; a row for each way it was asked.

    `traces` has, by (model, split), the traces of its facts as `read.trace` gives them. Of the corruptions the leading
    one is drawn, here and below.
    """
    corruption = vocabulary.leading(name for some in traces.values() for trace in some for name in trace.kinds)
    traces = {key: [t for t in some if kind in t.kinds.get(corruption, [])] for key, some in traces.items()}
    rows = panels({key for key, some in traces.items() if some}, models)
    if not rows:
        return nothing(NO_TRACES)
    effects_of = partial(_effects, kind=kind, corruption=corruption, score=score)
    chosen = one_fact([traces[row.model, row.split] for row in rows], effects_of)
    effects = [effects_of(trace) for trace in chosen]
    low, high = _limits(*effects)
    sheet = Sheet()
    for row, trace, values in zip(rows, chosen, effects, strict=True):
        sheet.heading(row.title, f"fact {plain(trace.about['fact'])}")
        places = shown_places(trace)
        height = PITCH * len(places)
        sheet.y += 18
        width = (POINTS - 2 * MARGIN) / MOST_STEPS
        for column, s in enumerate(_spread(len(trace.steps), MOST_STEPS)):
            axes = sheet.panel(MARGIN + column * width + GUTTER, sheet.y, width - GUTTER - 8, height)
            image = _heat(axes, _visible(trace, values, s)[places], low, high)
            axes.set_yticks(range(len(places)), [_label(trace, s, place) for place in places], family="monospace")
            if WHOLE in trace.roles[s]:
                axes.axhline(len(places) - 1.5, color="white", linewidth=2)
            sheet.text(MARGIN + column * width + 4, sheet.y - 6, _step_title(trace, s, corruption, score), size=SMALL)
        sheet.y += height + 30
    bar = sheet.figure.colorbar(image, cax=sheet.panel(MARGIN + GUTTER, sheet.y, 180, 8), orientation="horizontal")
    bar.outline.set_visible(False)
    note = f"{KINDS[kind]} restored: {EFFECT}"
    sheet.text(MARGIN + GUTTER + 190, sheet.y + 7, note, size=SMALL)
    sheet.text(MARGIN + GUTTER + 190, sheet.y + 19, f"* subject   {MASK} masked token", size=SMALL, color=FAINT)
    sheet.y += 22
    facts = ", ".join(dict.fromkeys(plain(trace.about["fact"]) for trace in chosen))
    return Drawing(sheet.done(), {"facts": facts, "ways": len(rows), "kind": KINDS[kind]})


def one_fact(groups, effects_of):
    """A trace of each group of traces, of one fact: of those that most groups have, where most can be restored."""
    gains = {}
    for group in groups:
        for trace in group:
            gains.setdefault(trace.about["fact"], []).append(float(np.nanmax(effects_of(trace))))
    best = min(gains, key=lambda fact: (-len(gains[fact]), -sum(gains[fact]), fact))
    return [next((t for t in group if t.about["fact"] == best), group[0]) for group in groups]


def shown_places(trace):
    """The places to show: the prompt and the answer, no more than a page holds, and the whole subject."""
    prompt, (start, end) = trace.about["prompt_tokens"], trace.about["answer"]
    whole = [place for place, role in enumerate(trace.roles[0]) if role == WHOLE]
    traced = len(trace.roles[0]) - len(whole)
    places = [place for place in (*range(prompt), *range(start, end)) if place < traced]
    return places[max(0, len(places) - MOST_TOKENS) :] + whole


def _effects(trace, kind, corruption, score):
    """Indirect effects (S, P, L) of one kind."""
    restored = trace.arrays[f"{score}.{corruption}.restored"][trace.kinds[corruption].index(kind)].astype(float)
    return restored - trace.arrays[f"{score}.{corruption}.corrupted"][:, None, None]


def _visible(trace, values, s):
    """The effects (P, L) of step number `s`, NaN at positions that it does not come to."""
    there = np.array([role is not None for role in trace.roles[s]])
    return np.where(there[:, None], values[s], np.nan)


def _spread(count, most):
    """At most `most` of `count` numbers from 0, evenly spread, both ends among them."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, most))})


def _label(trace, s, place):
    role = trace.roles[s][place]
    if role == WHOLE:
        return "all of *"
    if role is None or role.startswith("masked"):
        return MASK if role else ""
    return shown_token(trace.about["tokens"][place], 10) + ("*" if "subject" in role else "")


def _step_title(trace, s, corruption, score):
    step, about = trace.steps[s], trace.about
    marks = [name for name in ("t1", "t2") if about[name] == step]
    when = f"step {step + 1}" + (f" ({' = '.join(marks)})" if marks else "")
    clean, broken = (trace.arrays[f"{score}.{run}"][s] for run in ("clean", f"{corruption}.corrupted"))
    return f"{when}: p {clean:.2f}, corrupted {broken:.2f}"


def _limits(*arrays):
    """One colour scale for all `arrays`: from 0 or less to the largest; around 0 where losses are large too."""
    known = np.concatenate([array[np.isfinite(array)].ravel() for array in map(np.asarray, arrays)])
    if not len(known):
        return 0.0, 1.0
    low, high = min(0.0, known.min()), max(known.max(), 1e-6)
    size = max(-low, high)
    return (-size, size) if low < -0.5 * high else (low, high)


def _heat(axes, values, low, high):
    """A heat map (rows, layers) with layers along the bottom."""
    signed = low == -high
    axes.set_facecolor("#c8c8c8" if signed else PALE)
    image = axes.imshow(values, cmap=SIGNED if signed else HEAT, vmin=low, vmax=high, aspect="auto")
    for row, layer in np.argwhere(values < 0.2 * low) if low < -0.1 * high else ():
        # A loss, where there is no colour to see.
        axes.text(layer, row, "−", ha="center", va="center", color=ink_on(image.to_rgba(values[row, layer])))
    axes.xaxis.set_major_locator(MaxNLocator(min(values.shape[1], 6), integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlabel("layer", labelpad=1)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    return image


@styled
def trace_average(table, *, models, score="probability"):
    """Average indirect effects by role and layer, a row a kind with one colour scale; below, some with intervals.

    `table` is the study's table of traces; of several seeds the first is drawn.
    """
    table = _of(table, score)
    table = table[(table.stage == "all") & table.step.isna()]
    columns = panels(set(zip(table.model, table.split, strict=True)), models)
    kinds = [kind for kind in KINDS if kind in set(table.kind)]
    if not columns or not kinds:
        return nothing(NO_TRACES)
    per = [table[(table.model == panel.model) & (table.split == panel.split)] for panel in columns]
    roles = [role for role in ROLES if any((rows.role == role).any() for rows in per)]
    tall = 10.5 * len(roles) + 16
    figure = blank(len(kinds) * tall + 190)
    grid = figure.subplots(len(kinds) + 1, len(columns), squeeze=False, height_ratios=[tall] * len(kinds) + [110])
    named = [f"{panel.title} ({_facts(rows)} facts)" for panel, rows in zip(columns, per, strict=True)]
    says = {"columns": ", ".join(named)}
    for axes_row, kind in zip(grid, kinds, strict=False):
        maps = [_by_role(rows[rows.kind == kind], roles) for rows in per]
        limits = _limits(*maps)
        for axes, values in zip(axes_row, maps, strict=True):
            image = _heat(axes, values, *limits)
            if np.isfinite(values).any():  # where all are small, one scale for all panels shows none of them
                axes.set_xlabel(f"layer (largest AIE: {np.nanmax(values):.2f})", labelpad=1)
            axes.set_yticks(range(len(roles)), [r + "*" if "subject" in r else r for r in roles])
            axes.tick_params(axis="y", labelleft=axes is axes_row[0])
        bar = figure.colorbar(image, ax=list(axes_row), aspect=14, fraction=0.05, pad=0.02)
        bar.set_label(f"{KINDS[kind]}: AIE")
        bar.outline.set_visible(False)
        says[kind] = _peak(maps, roles, columns)
    for axes, panel, rows in zip(grid[0], columns, per, strict=True):
        axes.set_title(f"{panel.title.replace(': ', chr(10))}\n{_facts(rows)} facts")
    _with_intervals(figure, grid[-1], per)
    return Drawing(figure, {kind: "not traced" for kind in KINDS} | says)


def _of(table, score):
    """The rows of the leading corruption, one score and the first seed."""
    table = table[(table.corruption == vocabulary.leading(table.corruption)) & (table.score == score)]
    return table[table.seed == table.seed.min()]


def _facts(rows):
    return 0 if rows.empty else int(rows.n.max())


def _by_role(rows, roles):
    """Means (roles, layers); NaN where no fact has such a token."""
    layers = range(int(rows.layer.max()) + 1) if len(rows) else range(1)
    return rows.pivot_table(index="role", columns="layer", values="mean").reindex(roles, columns=layers).to_numpy(float)


def _peak(maps, roles, columns):
    said = []
    for values, panel in zip(maps, columns, strict=True):
        if np.isfinite(values).any():
            role, layer = np.unravel_index(np.nanargmax(values), values.shape)
            said.append(f"{panel.title}, {roles[role]} at layer {layer} ({values[role, layer]:.2f})")
    return "; ".join(said) or "not traced"


SITES = {
    ("mlp", "last subject"): ("MLP at the last subject token", BLUE, "o", "-"),
    ("attn", "last prompt"): ("attention at the last prompt token", VERMILLION, "s", "--"),
    ("attn", "masked answer"): ("attention at the masked answer", GREEN, "^", ":"),
}


def _with_intervals(figure, axes_row, per):
    """What ROME compares, layer by layer: MLPs at the subject's end, attention where the answer is read."""
    used = {}
    for axes, rows in zip(axes_row, per, strict=True):
        axes.sharey(axes_row[0])
        for (kind, role), (label, color, marker, line) in SITES.items():
            site = rows[(rows.kind == kind) & (rows.role == role)].sort_values("layer")
            if len(site):
                x = site.layer.astype(float)
                axes.fill_between(x, site.ci_low, site.ci_high, color=color, alpha=0.18, linewidth=0)
                used[label] = axes.plot(x, site["mean"], color=color, marker=marker, linestyle=line, markersize=4)[0]
        axes.axhline(0, color=FAINT, linewidth=0.7)
        axes.set_xlim(-0.5, rows.layer.max() + 0.5)  # as in the heat maps above
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlabel("layer", labelpad=1)
        axes.tick_params(labelleft=axes is axes_row[0])
    axes_row[0].set_ylabel("AIE, 95% interval")
    if used:
        figure.legend(used.values(), used.keys(), loc="outside lower center", ncols=2)


@styled
def trace_steps(table, *, models, score="probability"):
    """How the effect moves from the subject to what is already revealed as an answer comes about, layer by layer."""
    table = _of(table, score)
    if table.empty:
        return nothing(NO_TRACES)
    table = table[table.step.isna() & table.stage.isin(list(STAGES))]
    rows = panels(set(zip(table.model, table.split, strict=True)), models)
    states = table[table.kind == "state"]
    if not rows or states.empty:
        return nothing("No answer was traced at more than one step.")
    layers = [int(layer) for layer in sorted(states.layer.dropna().unique())]
    layers = [layers[i] for i in _spread(len(layers), MOST_LAYERS)]
    figure = blank(105 * len(rows) + 60)
    grid = figure.subplots(len(rows), len(layers), squeeze=False, sharex=True, sharey=True)
    subject = next(role for role in (WHOLE, "last subject") if role in {*states.role, "last subject"})
    courses = {
        ("state", subject): (subject, BLUE, "o", "-"),
        ("state", "revealed answer"): ("revealed answer tokens", VERMILLION, "s", "--"),
        ("total", "all"): ("total effect", FAINT, "x", ":"),
    }
    used, says = {}, []
    for axes, layer in zip(grid[0], layers, strict=True):
        axes.set_title(f"states of layer {layer}")
    for axes_row, panel in zip(grid, rows, strict=True):
        own = table[(table.model == panel.model) & (table.split == panel.split)]
        for axes, layer in zip(axes_row, layers, strict=True):
            for shift, ((kind, role), look) in zip(offsets(len(courses), 0.1), courses.items(), strict=True):
                course = own[(own.kind == kind) & (own.role == role) & (own.layer.isna() | (own.layer == layer))]
                _course(axes, course.set_index("stage"), shift, look, used)
            axes.axhline(0, color=FAINT, linewidth=0.7)
        axes_row[0].set_ylabel(f"{panel.title.split(':')[0]}\nAIE")
        says.append(_moved(own[own.kind == "state"], panel, subject))
    for axes in grid[-1]:
        axes.set_xticks(range(len(STAGES)), STAGES.values())
        axes.set_xlim(-0.3, len(STAGES) - 0.7)
    if score == "probability":  # an interval of few facts may reach beyond what an effect can be
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, -1.05), min(high, 1.05))
    figure.legend(used.values(), used.keys(), loc="outside lower center", ncols=3)
    return Drawing(figure, {"courses": "; ".join(says)})


STAGES = {"first": "t1", "middle": "between", "last": "t2"}


def _course(axes, by_stage, shift, look, used):
    label, color, marker, line = look
    there = [(i, by_stage.loc[stage]) for i, stage in enumerate(STAGES) if stage in by_stage.index]
    if there:
        x = [i + shift for i, _ in there]
        used[label] = axes.plot(x, [r["mean"] for _, r in there], color=color, marker=marker, linestyle=line)[0]
        axes.vlines(x, [r.ci_low for _, r in there], [r.ci_high for _, r in there], color=color, linewidth=1.2)


def _moved(states, panel, subject):
    """In words: the largest effect of the subject and of revealed tokens, first and last."""
    parts = []
    for stage in ("first", "last"):
        at = states[states.stage == stage]
        for role, name in ((subject, "subject"), ("revealed answer", "revealed answer")):
            values = at[at.role == role]["mean"]
            if len(values):
                parts.append(f"{name} {values.max():.2f} at {STAGES[stage]}")
    return f"{panel.title}: " + ", ".join(parts)


def trace_map(trace, *, family="diffusion", asks="description", kind="state"):
    """One fact's trace as `trace_facts` draws it: a matplotlib figure.

    The network is of that `family`, and its answer is a "description" or a "name".
    """
    split = FORWARD[0] if asks == "description" else REVERSE[0]
    return trace_facts({(family, split): [trace]}, models={family: family}, kind=kind).figure
