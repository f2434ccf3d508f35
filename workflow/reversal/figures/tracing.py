"""Where facts come from inside the models, in nats: causal traces of single facts, on average, and over steps."""

from operator import methodcaller
from typing import NamedTuple

import numpy as np
from matplotlib.ticker import MaxNLocator

from ..data.facts import KNOWN, RECALL_SPLITS
from ..tracing import vocabulary
from .sheet import MARGIN, Sheet
from .style import (
    BLUE,
    FAINT,
    GREEN,
    HEAT,
    POINTS,
    PURPLE,
    RULE,
    SIGNED,
    SKY,
    SMALL,
    VERMILLION,
    Drawing,
    blank,
    counted,
    first_of,
    ink_on,
    looks,
    nothing,
    number,
    percent,
    phrase,
    plain,
    shown_token,
    styled,
)

WHOLE, ANSWER = vocabulary.TOGETHER
AFTER = vocabulary.ROLES.index("last subject") + 1
# What is restored together stands after its parts.
ROLES = [*vocabulary.ROLES[:AFTER], WHOLE, *(role for role in vocabulary.ROLES[AFTER:] if role != WHOLE)]
KINDS = {name: vocabulary.KINDS[name].label for name in vocabulary.WHOLE}
# The same people asked both ways, where they were traced; otherwise what there is.
FORWARD = ("p2d_same", "both_p2d", "d2p_reverse", "known_p2d")
REVERSE = ("p2d_reverse", "both_d2p", "d2p_same", "known_d2p")
MASK = "M"
LEAST = 0.05  # share of what hiding the subject costs: roles that return less are not drawn
MOST_TOKENS, MOST_STEPS = 34, 3
PITCH, GUTTER = 9.8, 66  # of the tokens of a fact, in points
NO_TRACES = "Too few facts were traced to draw anything."
EFFECT = "nats of the answer returned"


class Panel(NamedTuple):
    """A model and the split it is traced on, and what to call that."""

    model: str
    split: str
    title: str


def panels(traced, models, ways=(FORWARD, REVERSE)):
    """The `Panel`s to set side by side, of those in `traced` ((model, split), …): both `ways` of the first diffusion
    model, each the first of its splits that was traced; the autoregressive model's first, or its second alone."""
    chosen = []
    for family in ("diffusion", "autoregressive"):
        name, found = first_of(models, family), []
        for splits in ways:
            split = next((split for split in splits if (name, split) in traced), None)
            if split:
                found.append(Panel(name, split, f"{looks(models)[name].label}: {phrase(split)}"))
        chosen += found if family == "diffusion" else found[:1]
    return chosen


@styled
def trace_facts(traces, *, models, kind="state"):
    """One fact's traces, token by layer, a panel a step; a row for each way it was asked.

    `traces` has, by (model, split), the traces of its facts as `read.trace` gives them. Of the corruptions the leading
    one is drawn, here and below.
    """
    corruption = vocabulary.leading(name for some in traces.values() for trace in some for name in trace.kinds)
    traces = {key: [t for t in some if kind in t.kinds.get(corruption, [])] for key, some in traces.items()}
    rows = panels({key for key, some in traces.items() if some}, models)
    if not rows:
        return nothing(NO_TRACES)
    chosen = one_fact([traces[row.model, row.split] for row in rows], methodcaller("effects", corruption, kind))
    sheet = Sheet()
    for row, trace in zip(rows, chosen, strict=True):
        effects = trace.effects(corruption, kind)
        sheet.heading(row.title, f"fact {plain(trace.about['fact'])}")
        places = shown_places(trace)
        height = PITCH * len(places)
        sheet.y += 18
        width = (POINTS - 2 * MARGIN) / MOST_STEPS
        # At t2 a fact may hardly hang on its subject: one scale for its steps, so that this shows.
        low, high = _limits(effects[:, places])
        for column, values in enumerate(effects):
            axes = sheet.panel(MARGIN + column * width + GUTTER, sheet.y, width - GUTTER - 8, height)
            image = _heat(axes, values[places], low, high)
            axes.set_yticks(range(len(places)), [_label(trace, column, place) for place in places], family="monospace")
            axes.axhline(len(places) - 2.5, color=FAINT, linewidth=0.7)
            sheet.text(MARGIN + column * width + 4, sheet.y - 6, _step_title(trace, column, corruption), size=SMALL)
        sheet.y += height + 30
        bar = sheet.figure.colorbar(image, cax=sheet.panel(MARGIN + GUTTER, sheet.y, 180, 8), orientation="horizontal")
        bar.outline.set_visible(False)
        sheet.text(MARGIN + GUTTER + 190, sheet.y + 7, f"{KINDS[kind]} restored: {EFFECT}", size=SMALL)
        sheet.y += 34
    sheet.text(MARGIN + GUTTER, sheet.y, f"* subject   {MASK} masked token", size=SMALL, color=FAINT)
    sheet.y += 8
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
    """The places to show: the prompt and the answer, no more than a page holds, and what is restored together."""
    prompt, (start, end) = trace.about["prompt_tokens"], trace.about["answer"]
    together = [place for place, role in enumerate(trace.roles[0]) if role in vocabulary.TOGETHER]
    traced = len(trace.roles[0]) - len(together)
    places = [place for place in (*range(prompt), *range(start, end)) if place < traced]
    return places[max(0, len(places) - MOST_TOKENS) :] + together


def _label(trace, s, place):
    role = trace.roles[s][place]
    if role in vocabulary.TOGETHER:
        return "all of *" if role == WHOLE else "answer"
    if role.startswith("masked"):
        return MASK
    return shown_token(trace.about["tokens"][place], 10) + ("*" if "subject" in role else "")


def _step_title(trace, s, corruption):
    clean, broken = (trace.arrays[f"log_probability.{run}"][s] for run in ("clean", f"{corruption}.corrupted"))
    return f"{trace.stages()[s]}, step {trace.steps[s] + 1}: hiding costs {number(clean - broken)} nats"


def _limits(*arrays):
    """One colour scale for all `arrays`: from 0 to the largest; around 0 where losses are large too."""
    known = np.concatenate([array[np.isfinite(array)].ravel() for array in map(np.asarray, arrays)])
    if not len(known):
        return 0.0, 1.0
    low, high = min(0.0, known.min()), max(known.max(), 1e-6)
    size = max(-low, high)
    return (-size, size) if low < -0.5 * high else (0.0, high)


def _heat(axes, values, low, high):
    """A heat map (rows, layers) with layers along the bottom."""
    signed = low == -high
    axes.set_facecolor(RULE)
    image = axes.imshow(values, cmap=SIGNED if signed else HEAT, vmin=low, vmax=high, aspect="auto")
    for row, layer in np.argwhere(values < -0.1 * high):
        # A loss, where there is no colour to see.
        axes.text(layer, row, "−", ha="center", va="center", color=ink_on(image.to_rgba(values[row, layer])))
    axes.xaxis.set_major_locator(MaxNLocator(min(values.shape[1], 6), integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlabel("layer", labelpad=1)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    return image


@styled
def trace_average(table, *, models):
    """Average effects at t1 by role and layer, as shares of what hiding the subject costs, on one scale for all panels.

    `table` is the study's table of traces; of several seeds the first is drawn, here and below.
    """
    costs = _drawn(table[table.kind == "total"], models, "whole")[0]
    table, columns = _drawn(table, models, "recovered")
    kinds = [kind for kind in KINDS if kind in set(table.kind)]
    if not columns or not kinds:
        return nothing(NO_TRACES)
    per = [_own(table, panel) for panel in columns]
    # Roles that return nothing anywhere are named, not drawn.
    most = table[table.kind.isin(kinds)].groupby("role")["mean"].max()
    roles = [role for role in ROLES if most.get(role, 0) >= LEAST] or [role for role in ROLES if role in most.index]
    idle = [role for role in ROLES if role in most.index and role not in roles]
    figure = blank(len(kinds) * (10.5 * len(roles) + 16) + 85)
    grid = figure.subplots(len(kinds), len(columns), squeeze=False, sharex="col")
    maps = {kind: [_by_role(rows[rows.kind == kind], roles) for rows in per] for kind in kinds}
    limits = _limits(*(np.clip(values, -1, 1) for some in maps.values() for values in some), np.ones(1))
    for axes_row, kind in zip(grid, kinds, strict=True):
        for axes, values in zip(axes_row, maps[kind], strict=True):
            image = _heat(axes, values, *limits)
            axes.set_xlabel("layer" if kind == kinds[-1] else "", labelpad=1)
            axes.set_yticks(range(len(roles)), [r + "*" if "subject" in r else r for r in roles])
            axes.tick_params(axis="y", labelleft=axes is axes_row[0])
        axes_row[0].set_ylabel(KINDS[kind], fontweight="bold")
    for axes, panel, rows in zip(grid[0], columns, per, strict=True):
        cost = _own(costs, panel)["mean"]
        lost = f"\nhiding costs {number(cost.iloc[0], 1)} nats" if len(cost) else ""
        axes.set_title(f"{panel.title.replace(': ', chr(10))}\n{_facts(rows)}{lost}")
    bar = figure.colorbar(image, ax=list(grid.flat), location="bottom", aspect=40, fraction=0.03, pad=0.02)
    bar.ax.xaxis.set_major_formatter(lambda share, _: percent(share))
    note = f"\nnot drawn: roles that return less than {percent(LEAST)} everywhere" if idle else ""
    bar.set_label(f"share returned of what hiding the subject costs;   * subject   grey: too few such tokens{note}")
    bar.outline.set_visible(False)
    named = ", ".join(f"{panel.title} ({_facts(rows)})" for panel, rows in zip(columns, per, strict=True))
    largest = {kind: _peak(maps[kind], roles, columns) for kind in kinds}
    says = {"columns": named, "idle": ", ".join(idle) or "none"}
    return Drawing(figure, dict.fromkeys(KINDS, "not traced") | largest | says)


def _drawn(table, models, *readings):
    """The rows at t1, in nats, of the leading corruption and the first seed; and the panels that they fill."""
    table = table[(table.corruption == vocabulary.leading(table.corruption)) & (table.score == "log_probability")]
    table = table[(table.seed == table.seed.min()) & (table.stage == vocabulary.STAGES[0])]
    table = table[table.reading.isin(readings)]
    if readings in (("recovered",), ("indirect",)) and len(table):
        # Of the windows the leading one, which alone is traced at every token.
        whole = table[table.role == "last prompt"]
        windows = whole.groupby("kind").window.first()
        table = table[table.window == table.kind.map(windows)]
    return table, panels(set(zip(table.model, table.split, strict=True)), models)


def _own(table, panel):
    return table[(table.model == panel.model) & (table.split == panel.split)]


def _facts(rows):
    return counted(0 if rows.empty else rows.n.max(), "fact")


def _by_role(rows, roles):
    """Means (roles, layers); NaN where no fact has such a token."""
    layers = range(int(rows.layer.max()) + 1) if len(rows) else range(1)
    return rows.pivot_table(index="role", columns="layer", values="mean").reindex(roles, columns=layers).to_numpy(float)


def _peak(maps, roles, columns):
    said = []
    for values, panel in zip(maps, columns, strict=True):
        if np.isfinite(values).any():
            role, layer = np.unravel_index(np.nanargmax(values), values.shape)
            said.append(f"{panel.title}, {roles[role]} at layer {layer} ({percent(values[role, layer])})")
    return "; ".join(said) or "not traced"


def _curve(axes, rows, x, look):
    """A line of means with its intervals; the handle that a legend needs."""
    color, marker, line = look
    rows = rows.sort_values(x)
    at = rows[x].astype(float)
    if len(rows) > 1:
        axes.fill_between(at, rows.ci_low, rows.ci_high, color=color, alpha=0.15, linewidth=0)
    else:  # a band of one point is not seen
        axes.vlines(at, rows.ci_low, rows.ci_high, color=color, linewidth=1.1)
    return axes.plot(at, rows["mean"], color=color, marker=marker, linestyle=line, markersize=4)[0]


def _lines(figure, grid, used, ylabel, xlabel="layer", columns=3):
    """What figures of curves have in common."""
    for axes in grid.flat:
        axes.axhline(0, color=FAINT, linewidth=0.7)
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    for axes in grid[-1]:
        axes.set_xlabel(xlabel, labelpad=1)
    for axes in grid[:, 0]:
        axes.set_ylabel(ylabel)
    figure.legend(used.values(), used.keys(), loc="outside lower center", ncols=columns)


def _within(grid):
    """Shares lie around 0 … 1; intervals of few facts may reach far beyond."""
    low, high = grid[0, 0].get_ylim()
    for axes in grid.flat:
        axes.set_ylim(max(low, -0.3), min(high, 1.3))


SIDES = {
    (WHOLE, "recovered"): ("whole subject put back", (BLUE, "o", "-")),
    ("last subject", "recovered"): ("its last token put back", (SKY, "v", "-")),
    (ANSWER, "recovered"): ("answer's places put back", (GREEN, "^", "-")),
    (WHOLE, "necessary"): ("whole subject taken away", (BLUE, "o", ":")),
    ("last subject", "necessary"): ("its last token taken away", (SKY, "v", ":")),
    (ANSWER, "necessary"): ("answer's places taken away", (GREEN, "^", ":")),
}


@styled
def trace_sides(table, *, models):
    """Sufficiency beside necessity, layer by layer: states put back into the corrupted run, or taken from the clean."""
    table, columns = _drawn(table[table.kind == "state"], models, "recovered", "necessary")
    if not columns:
        return nothing(NO_TRACES)
    figure, used, says = blank(210), {}, []
    grid = figure.subplots(1, len(columns), squeeze=False, sharey=True)
    for axes, panel in zip(grid[0], columns, strict=True):
        own = _own(table, panel)
        for (role, reading), (label, look) in SIDES.items():
            rows = own[(own.role == role) & (own.reading == reading)]
            if len(rows):
                used[label] = _curve(axes, rows, "layer", look)
        axes.axhline(1, color=FAINT, linewidth=0.7, linestyle=":")
        axes.set_title(f"{panel.title.replace(': ', chr(10))}\n{_facts(own)}")
        best = own[(own.role == WHOLE) & (own.reading == "recovered")]
        if len(best):
            top = best.loc[best["mean"].idxmax()]
            says.append(f"{panel.title}, whole subject {percent(top['mean'])} at layer {top.layer:.0f}")
    _lines(figure, grid, used, "share of the total effect")
    _within(grid)
    return Drawing(figure, {"shares": "; ".join(says)})


@styled
def trace_windows(table, *, models):
    """What MLPs and attention return at the subject where one, three or five layers are restored together."""
    table, columns = _drawn(table[table.kind.isin(vocabulary.WINDOWED)], models, "recovered", "necessary")
    table = table[(table.reading == "recovered") & (table.role == WHOLE)]
    kinds = [kind for kind in vocabulary.WINDOWED if kind in set(table.kind)]
    if not columns or not kinds:
        return nothing(NO_TRACES)
    figure, used, says = blank(110 * len(kinds) + 70), {}, []
    grid = figure.subplots(len(kinds), len(columns), squeeze=False, sharey=True, sharex=True)
    looks_of = [(SKY, "o", "-"), (BLUE, "s", "--"), ("#003f66", "^", ":")]
    for axes_row, kind in zip(grid, kinds, strict=True):
        for axes, panel in zip(axes_row, columns, strict=True):
            own = _own(table, panel)
            own = own[own.kind == kind]
            for window, look in zip(sorted(own.window.unique()), looks_of, strict=False):
                name = counted(window, "layer") + (" together" if window > 1 else "")
                used[name] = _curve(axes, own[own.window == window], "layer", look)
            if len(own):
                top = own.loc[own["mean"].idxmax()]
                share, together = percent(top["mean"]), counted(top.window, "layer")
                says.append(f"{panel.title}, {KINDS[kind]} {share} with {together}")
    for axes, panel in zip(grid[0], columns, strict=True):
        axes.set_title(f"{panel.title.replace(': ', chr(10))}\n{_facts(_own(table, panel))}")
    _lines(figure, grid, used, "share returned")
    _within(grid)
    for axes, kind in zip(grid[:, 0], kinds, strict=True):
        axes.set_ylabel(f"{KINDS[kind]}: share returned")
    return Drawing(figure, {"shares": "; ".join(says)})


PLACES = {
    "the subject": ("subject", BLUE, "o"),
    "the answer's places": ("answer", GREEN, "^"),
    "other tokens": ("", FAINT, "s"),
}


@styled
def trace_alike(table, *, models):
    """What every hidden state returns in people taught one way against the same in people taught the other.

    A panel a question; a point is a token's role at a layer.
    """
    table, _ = _drawn(table[table.kind == "state"], models, "indirect")
    name = first_of(models, "diffusion")
    table = table[(table.model == name) & table.role.isin(vocabulary.SINGLE_ROLES) & (table.n > 1)]
    pairs = {"descriptions": ("p2d_same", "d2p_reverse"), "names": ("d2p_same", "p2d_reverse")}
    there = {answer_type: pair for answer_type, pair in pairs.items() if set(pair) <= set(table.split)}
    if not there:
        return nothing("No question was traced both ways.")
    figure, used, says = blank(235), {}, []
    grid = figure.subplots(1, len(there), squeeze=False)
    for axes, (answer_type, pair) in zip(grid[0], there.items(), strict=True):
        cells = table.pivot_table(index=["role", "layer"], columns="split", values="mean")[list(pair)].dropna()
        roles = cells.index.get_level_values("role")
        place = [next(label for label, (word, *_) in PLACES.items() if word in role) for role in roles]
        for label, (_, color, marker) in PLACES.items():
            own = cells[[at == label for at in place]]
            how = {"color": color, "marker": marker, "alpha": 0.6, "linewidths": 0}
            used[f"states of {label}"] = axes.scatter(own[pair[0]], own[pair[1]], s=14, **how)
        ends = (float(cells.min().min()), float(cells.max().max()))
        axes.plot(ends, ends, color=FAINT, linewidth=0.7)
        axes.set_title(f"{looks(models)[name].label}: {answer_type}, {counted(len(cells), 'state')}")
        axes.set_xlabel("nats returned, people taught as asked", labelpad=1)
        below = int((cells[pair[1]] < cells[pair[0]]).sum())
        says.append(f"{answer_type}, {below} of {len(cells)} below the line, the largest effect {number(ends[1], 1)} nats")
    grid[0, 0].set_ylabel("nats returned,\npeople taught the other way")
    figure.legend(used.values(), used.keys(), loc="outside lower center", ncols=3)
    return Drawing(figure, {"questions": "; ".join(says)})


COSTS = {
    ("subject", None): ("subject hidden", (BLUE, "o", "-")),
    ("revealed", "swap"): ("revealed tokens replaced", (VERMILLION, "s", "-")),
    ("revealed", "mask"): ("revealed tokens masked", (VERMILLION, "v", ":")),
    ("both", "swap"): ("subject hidden and tokens replaced", (FAINT, "x", "--")),
}


# Descriptions first: a name of two tokens has no course.
AS_TAUGHT = ("p2d_same", "both_p2d", "d2p_same", "known_p2d")
IN_REVERSE = ("d2p_reverse", "p2d_reverse", "both_d2p", "known_d2p")


@styled
def hand_over(table, *, models):
    """What the tokens still to come rest on, as the answer appears: the subject, or what is already revealed of it.

    A point is of at least half of the facts.
    """
    table = table[(table.reading == "rests") & table.revealed.notna() & (table.n > 1)]
    table = table[table.seed == table.seed.min()]
    several = table[table.hidden == "revealed"]
    columns = panels(set(zip(several.model, several.split, strict=True)), models, (AS_TAUGHT, IN_REVERSE))
    if not columns:
        return nothing("No answer was revealed in more than one step.")
    figure, used, says = blank(220), {}, []
    grid = figure.subplots(1, len(columns), squeeze=False, sharey=True)
    for axes, panel in zip(grid[0], columns, strict=True):
        own = _own(table, panel)
        own = own[own.n >= own.n.max() / 2]  # a mean of few says little beside one of many
        for (hidden, kind), (label, look) in COSTS.items():
            rows = own[(own.hidden == hidden) & (own.kind.isna() if kind is None else own.kind == kind)]
            if len(rows):
                used[label] = _curve(axes, rows, "revealed", look)
        few, many = own.n.min(), own.n.max()
        facts = _facts(own) if few == many else f"{few:.0f} to {_facts(own)}"
        axes.set_title(f"{panel.title.replace(': ', chr(10))}\n{facts}")
        costs = own[own.hidden == "subject"].sort_values("revealed")["mean"]
        says.append(
            f"{panel.title}, hiding the subject costs {number(costs.iloc[0])} nats first, {number(costs.iloc[-1])} last"
        )
    _lines(figure, grid, used, "nats lost of what is to come", "answer tokens revealed", columns=2)
    return Drawing(figure, {"courses": "; ".join(says)})


TESTS = (*RECALL_SPLITS, *KNOWN)
HIDDEN = {
    "from": ("subject hidden from this step on", (VERMILLION, "s", "-")),
    "until": ("subject hidden up to this step", (BLUE, "o", "-")),
}


MODULES = {"mlp": (PURPLE, "^", -0.12), "attn": (GREEN, "D", 0.12)}


@styled
def hidden_steps(table, *, models):
    """Recall of the finished answer where the subject is hidden for some of the steps.

    Below, where it is seen but the output of one module at its tokens is hidden at all steps, layer by layer.
    """
    table = table[(table.reading == "recalled") & (table.model == first_of(models, "diffusion"))]
    table = table[table.seed == table.seed.min()]
    whole, modules = table[table.kind == "subject"], table[(table.kind != "subject") & (table.hidden == "from")]
    modules = modules[modules.step == modules.step.min()]
    tests = [split for split in TESTS if split in set(whole.split)]
    if not tests:
        return nothing(NO_TRACES)
    rows = 1 + bool(len(modules))
    figure, used, says = blank(60 + 125 * rows), {}, []
    grid = figure.subplots(rows, len(tests), squeeze=False, sharey=True)
    for axes, split in zip(grid[0], tests, strict=True):
        own = whole[whole.split == split]
        for way, (label, look) in HIDDEN.items():
            used[label] = _curve(axes, own[own.hidden == way], "step", look)
        axes.set_title(f"{_two_lines(split)}\n{_facts(own)}")
        axes.set_xlabel("denoising step", labelpad=1)
        late = own[(own.hidden == "until") & (own["mean"] >= 0.5)].step.max()
        says.append(f"{phrase(split)}, half are right if it is hidden up to step {late:.0f}")
    for axes, split in zip(grid[1] if rows > 1 else (), tests, strict=False):
        own = modules[modules.split == split]
        for kind, (color, marker, shift) in MODULES.items():
            some = own[own.kind == kind].sort_values("layer")
            if len(some):
                at = some.layer.astype(float) + shift
                axes.vlines(at, some.ci_low, some.ci_high, color=color, linewidth=0.8, alpha=0.5)
                label = f"{KINDS[kind]} of one layer hidden at all steps"
                used[label] = axes.plot(at, some["mean"], marker, color=color, markersize=4)[0]
                worst = some.loc[some["mean"].idxmin()]
                share = percent(worst["mean"])
                says.append(f"{phrase(split)}, {share} right without the {KINDS[kind]} of layer {worst.layer:.0f}")
        axes.set_title(_facts(own))
        axes.set_xlabel("layer", labelpad=1)
    for axes in grid.flat:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_formatter(lambda share, _: percent(share))
        axes.set_ylim(-0.06, 1.06)
    for axes in grid[:, 0]:
        axes.set_ylabel("answers right")
    figure.legend(used.values(), used.keys(), loc="outside lower center", ncols=2)
    return Drawing(figure, {"tests": "; ".join(says)})


def _two_lines(split):
    return phrase(split).replace("s ", "s\n", 1)


def trace_map(trace, *, family="diffusion", answer_type="description", kind="state"):
    """One fact's trace as `trace_facts` draws it: a matplotlib figure.

    The network is of that `family`, and its answer is a "description" or a "name".
    """
    split = FORWARD[0] if answer_type == "description" else REVERSE[0]
    return trace_facts({(family, split): [trace]}, models={family: family}, kind=kind).figure
