"""Figures of causal tracing: single facts, averages over facts, and the course over denoising steps."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..data.facts import KNOWN, RECALL_SPLITS
from ..tracing import vocabulary
from ..tracing.files import FactTrace
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
    add_color_bar,
    choose_looks,
    describe_split,
    draw_empty,
    draw_intervals,
    first_model,
    ink_on,
    new_figure,
    number,
    percent,
    plain,
    pluralize,
    shown_token,
    styled,
)

SUBJECT, ANSWER = vocabulary.JOINT_ROLES
AFTER_SUBJECT = vocabulary.ROLES.index("last subject") + 1
# The row of all subject tokens follows those of its tokens.
OTHER_ROLES = [role for role in vocabulary.ROLES[AFTER_SUBJECT:] if role != SUBJECT]
ROLES = [*vocabulary.ROLES[:AFTER_SUBJECT], SUBJECT, *OTHER_ROLES]
KINDS = vocabulary.KINDS
# Splits in order of preference: the same people in both directions, where they were traced.
FORWARD = ("p2d_same", "both_p2d", "d2p_reverse", "known_p2d")
REVERSE = ("p2d_reverse", "both_d2p", "d2p_same", "known_d2p")
MASK = "M"
MIN_SHARE = 0.05  # of the total effect: roles that recover less everywhere are not drawn
MAX_TOKENS, MAX_STEPS = 34, 3
PITCH, GUTTER = 9.8, 66  # height of a token's row and width of its label, in points
NO_TRACES = "Too few facts were traced to draw anything."
EFFECT = "indirect effect on the answer, nats"
FAINT_INTERVAL = {"linewidth": 0.8, "alpha": 0.5}


class Panel(NamedTuple):
    """A model, the split that it is traced on, and a title."""

    model: str
    split: str
    title: str


def choose_panels(traced, models, directions=(FORWARD, REVERSE)):
    """The `Panel`s to draw side by side, from the (model, split) pairs in `traced`.

    For the first diffusion model one panel for each of `directions`, with the first of its splits that was traced; for
    the first autoregressive model the first such panel only.
    """
    panels = []
    for family in ("diffusion", "autoregressive"):
        model = first_model(models, family)
        splits = [next((split for split in splits if (model, split) in traced), None) for splits in directions]
        of_family = [
            Panel(model, split, f"{choose_looks(models)[model].label}: {describe_split(split)}")
            for split in splits
            if split
        ]
        panels += of_family if family == "diffusion" else of_family[:1]
    return panels


@styled
def trace_facts(traces, *, models):
    """Traces of one fact, tokens by layers: a panel for each step, a row for each model and direction.

    `traces` is {(model, split): [`FactTrace`]}. As in all figures here, only the leading corruption is drawn.
    """
    corruption = vocabulary.choose_corruption(
        name for group in traces.values() for trace in group for name in trace.kinds
    )
    traces = {key: [t for t in group if "state" in t.kinds.get(corruption, [])] for key, group in traces.items()}
    rows = choose_panels({key for key, group in traces.items() if group}, models)
    if not rows:
        return draw_empty(NO_TRACES)
    chosen = choose_fact([traces[row.model, row.split] for row in rows], corruption)
    notes = [f"fact {plain(trace.metadata['fact'])}" for trace in chosen]
    figure = _draw_maps(zip((row.title for row in rows), notes, chosen, strict=True), corruption, "state")
    facts = ", ".join(dict.fromkeys(plain(trace.metadata["fact"]) for trace in chosen))
    return Drawing(figure, {"facts": facts, "ways": len(rows)})


def _draw_maps(panels, corruption, kind):
    """A figure with a row of maps, one for each step, for each (title, note, trace) of `panels`."""
    sheet = Sheet()
    for title, note, trace in panels:
        score = trace.comparable_score(corruption, kind)
        effects = trace.indirect_effects(corruption, kind, score=score)
        sheet.heading(title, note)
        places = choose_places(trace)
        height = PITCH * len(places)
        sheet.y += 18
        width = (POINTS - 2 * MARGIN) / MAX_STEPS
        low, high = _color_limits(effects[:, places])  # one scale for all steps, because effects may vanish at t2
        for column, values in enumerate(effects):
            axes = sheet.panel(MARGIN + column * width + GUTTER, sheet.y, width - GUTTER - 8, height)
            image = _draw_heat_map(axes, values[places], low, high)
            labels = [_label_place(trace, column, place) for place in places]
            axes.set_yticks(range(len(places)), labels, family="monospace")
            axes.axhline(len(places) - 2.5, color=FAINT, linewidth=0.7)
            step_title = _step_title(trace, column, corruption, score)
            sheet.text(MARGIN + column * width + 4, sheet.y - 6, step_title, size=SMALL)
        sheet.y += height + 30
        bar = sheet.figure.colorbar(image, cax=sheet.panel(MARGIN + GUTTER, sheet.y, 180, 8), orientation="horizontal")
        bar.outline.set_visible(False)
        sheet.text(MARGIN + GUTTER + 190, sheet.y + 7, f"{KINDS[kind]} restored: {EFFECT}", size=SMALL)
        sheet.y += 34
    sheet.text(MARGIN + GUTTER, sheet.y, f"* subject   {MASK} masked token", size=SMALL, color=FAINT)
    sheet.y += 8
    return sheet.finish()


def choose_fact(groups, corruption):
    """One trace from each group of traces: of the fact in most groups that has the largest effects."""
    largest = {}
    for group in groups:
        for trace in group:
            effects = trace.indirect_effects(corruption, "state")
            largest.setdefault(trace.metadata["fact"], []).append(float(np.nanmax(effects)))
    best = min(largest, key=lambda fact: (-len(largest[fact]), -sum(largest[fact]), fact))
    return [next((t for t in group if t.metadata["fact"] == best), group[0]) for group in groups]


def choose_places(trace):
    """The places to draw: prompt and answer, as many as fit on a page, and the tokens restored together."""
    prompt, (start, end) = trace.metadata["prompt_tokens"], trace.metadata["answer"]
    joint = [place for place, role in enumerate(trace.roles[0]) if role in vocabulary.JOINT_ROLES]
    length = len(trace.roles[0]) - len(joint)
    places = [place for place in (*range(prompt), *range(start, end)) if place < length]
    return places[max(0, len(places) - MAX_TOKENS) :] + joint


def _label_place(trace, step, place):
    role = trace.roles[step][place]
    if role in vocabulary.JOINT_ROLES:
        return "all of *" if role == SUBJECT else "answer"
    if role.startswith("masked"):
        return MASK
    return shown_token(trace.metadata["tokens"][place], 10) + ("*" if "subject" in role else "")


def _step_title(trace, step, corruption, score):
    total = trace.total_effect(corruption, score)[step]
    return f"{trace.stages()[step]}, step {trace.steps[step] + 1}: total effect {number(total)} nats"


def _color_limits(*arrays):
    """One colour scale for all `arrays`: from 0 to the maximum; symmetric around 0 if negative values are large."""
    known = np.concatenate([array[np.isfinite(array)].ravel() for array in map(np.asarray, arrays)])
    if not len(known):
        return 0.0, 1.0
    low, high = min(0.0, known.min()), max(known.max(), 1e-6)
    size = max(-low, high)
    return (-size, size) if low < -0.5 * high else (0.0, high)


def _draw_heat_map(axes, values, low, high):
    """Draw `values` (rows, layers) with layers along the bottom."""
    signed = low == -high
    axes.set_facecolor(RULE)
    image = axes.imshow(values, cmap=SIGNED if signed else HEAT, vmin=low, vmax=high, aspect="auto")
    for row, layer in np.argwhere(values < -0.1 * high):
        # A minus sign, because the colour scale may not show negative effects.
        axes.text(layer, row, "−", ha="center", va="center", color=ink_on(image.to_rgba(values[row, layer])))
    axes.xaxis.set_major_locator(MaxNLocator(min(values.shape[1], 6), integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlabel("layer", labelpad=1)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    return image


@styled
def trace_average(table, *, models):
    """Average effects at t1 by role and layer, as shares of the total effect, on one scale for all panels.

    `table` is causal_trace.csv. As in the figures below, the first of several seeds is drawn.
    """
    totals = _select_t1(table[table.kind == "total"], models, "scores", score="sequential")[0]
    table, columns = _select_t1(table, models, "recovered")
    kinds = [kind for kind in KINDS if kind in set(table.kind)]
    if not columns or not kinds:
        return draw_empty(NO_TRACES)
    tables = [select_panel(table, panel) for panel in columns]
    # Roles without effects are listed, not drawn.
    largest = table[table.kind.isin(kinds)].groupby("role")["mean"].max()
    present = [role for role in ROLES if role in largest.index]
    roles = [role for role in present if largest[role] >= MIN_SHARE] or present
    idle = [role for role in present if role not in roles]
    figure = new_figure(len(kinds) * (10.5 * len(roles) + 16) + 95)
    grid = figure.subplots(len(kinds), len(columns), squeeze=False, sharex="col")
    maps = {kind: [_pivot_roles(rows[rows.kind == kind], roles) for rows in tables] for kind in kinds}
    limits = _color_limits(*(np.clip(values, -1, 1) for group in maps.values() for values in group), np.ones(1))
    for axes_row, kind in zip(grid, kinds, strict=True):
        for axes, values in zip(axes_row, maps[kind], strict=True):
            image = _draw_heat_map(axes, values, *limits)
            axes.set_xlabel("layer" if kind == kinds[-1] else "", labelpad=1)
            axes.set_yticks(range(len(roles)), [r + "*" if "subject" in r else r for r in roles])
            axes.tick_params(axis="y", labelleft=axes is axes_row[0])
        axes_row[0].set_ylabel(KINDS[kind], fontweight="bold")
    for axes, panel, rows in zip(grid[0], columns, tables, strict=True):
        total = select_panel(totals, panel)["mean"]
        note = f"\ntotal effect {number(total.iloc[0], 1)} nats" if len(total) else ""
        title = panel.title.replace(": ", "\n").replace(", ", ",\n")
        axes.set_title(f"{title}\n{_count_facts(rows)}{note}")
    note = f"\nnot drawn: roles that recover less than {percent(MIN_SHARE)} everywhere" if idle else ""
    label = f"share of the total effect recovered;   * subject   grey: too few such tokens{note}"
    add_color_bar(figure, image, grid.flat, label, fraction=0.03, pad=0.02)
    named = ", ".join(f"{panel.title} ({_count_facts(rows)})" for panel, rows in zip(columns, tables, strict=True))
    peaks = {kind: _describe_peaks(maps[kind], roles, columns) for kind in kinds}
    alt_values = {"columns": named, "idle": ", ".join(idle) or "none"}
    return Drawing(figure, dict.fromkeys(KINDS, "not traced") | peaks | alt_values)


def _select_t1(table, models, *readings, score="log_probability"):
    """The rows at t1, in nats, of the leading corruption and the first seed; and the panels for them."""
    corruption = vocabulary.choose_corruption(table.corruption)
    table = table[(table.corruption == corruption) & (table.score == score)]
    table = table[(table.seed == table.seed.min()) & (table.stage == vocabulary.STAGES[0])]
    table = table[table.reading.isin(readings)]
    if readings in (("recovered",), ("indirect",)) and len(table):
        # Keep the leading window, the only one traced at every token.
        windows = table[table.role == "last prompt"].groupby("kind").window.first()
        table = table[table.window == table.kind.map(windows)]
    return table, choose_panels(set(zip(table.model, table.split, strict=True)), models)


def select_panel(table, panel):
    return table[(table.model == panel.model) & (table.split == panel.split)]


def _count_facts(rows):
    return pluralize(0 if rows.empty else rows.n.max(), "fact")


def _pivot_roles(rows, roles):
    """Means (roles, layers); NaN where no fact has such a token."""
    layers = range(int(rows.layer.max()) + 1) if len(rows) else range(1)
    return rows.pivot_table(index="role", columns="layer", values="mean").reindex(roles, columns=layers).to_numpy(float)


def _describe_peaks(maps, roles, columns):
    """The largest share of each map (roles, layers) in words."""
    peaks = []
    for values, panel in zip(maps, columns, strict=True):
        if np.isfinite(values).any():
            role, layer = np.unravel_index(np.nanargmax(values), values.shape)
            peaks.append(f"{panel.title}, {roles[role]} at layer {layer} ({percent(values[role, layer])})")
    return "; ".join(peaks) or "not traced"


def _draw_curve(axes, rows, column, look):
    """Draw the means over a column with their intervals; return the handle for a legend."""
    color, marker, line = look
    rows = rows.sort_values(column)
    x = rows[column].astype(float)
    if len(rows) > 1:
        axes.fill_between(x, rows.ci_low, rows.ci_high, color=color, alpha=0.15, linewidth=0)
    else:  # a band of one point is invisible
        axes.vlines(x, rows.ci_low, rows.ci_high, color=color, linewidth=1.1)
    return axes.plot(x, rows["mean"], color=color, marker=marker, linestyle=line, markersize=4)[0]


def _label_curves(figure, grid, handles, ylabel, xlabel="layer", columns=3):
    """Add axis labels and a legend of `handles` ({label: handle}) to a grid of curves."""
    for axes in grid.flat:
        axes.axhline(0, color=FAINT, linewidth=0.7)
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    for axes in grid[-1]:
        axes.set_xlabel(xlabel, labelpad=1)
    for axes in grid[:, 0]:
        axes.set_ylabel(ylabel)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)


def _limit_shares(grid):
    """Limit the axes of shares to about 0 … 1, because intervals of few facts may reach far beyond."""
    low, high = grid[0, 0].get_ylim()
    for axes in grid.flat:
        axes.set_ylim(max(low, -0.3), min(high, 1.3))


NECESSITY = {
    (SUBJECT, "recovered"): ("all subject tokens restored", (BLUE, "o", "-")),
    ("last subject", "recovered"): ("last subject token restored", (SKY, "v", "-")),
    (ANSWER, "recovered"): ("answer positions restored", (GREEN, "^", "-")),
    (SUBJECT, "necessary"): ("all subject tokens corrupted", (BLUE, "o", ":")),
    ("last subject", "necessary"): ("last subject token corrupted", (SKY, "v", ":")),
    (ANSWER, "necessary"): ("answer positions corrupted", (GREEN, "^", ":")),
}


@styled
def trace_necessity(table, *, models):
    """Sufficiency and necessity by layer: states restored in the corrupted run, or corrupted in the clean run."""
    table, columns = _select_t1(table[table.kind == "state"], models, "recovered", "necessary")
    if not columns:
        return draw_empty(NO_TRACES)
    figure, handles, shares = new_figure(210), {}, []
    grid = figure.subplots(1, len(columns), squeeze=False, sharey=True)
    for axes, panel in zip(grid[0], columns, strict=True):
        panel_rows = select_panel(table, panel)
        for (role, reading), (label, look) in NECESSITY.items():
            rows = panel_rows[(panel_rows.role == role) & (panel_rows.reading == reading)]
            if len(rows):
                handles[label] = _draw_curve(axes, rows, "layer", look)
        axes.axhline(1, color=FAINT, linewidth=0.7, linestyle=":")
        axes.set_title(f"{panel.title.replace(': ', chr(10))}\n{_count_facts(panel_rows)}")
        subject = panel_rows[(panel_rows.role == SUBJECT) & (panel_rows.reading == "recovered")]
        if len(subject):
            top = subject.loc[subject["mean"].idxmax()]
            shares.append(f"{panel.title}, all subject tokens {percent(top['mean'])} at layer {top.layer:.0f}")
    _label_curves(figure, grid, handles, "share of the total effect")
    _limit_shares(grid)
    return Drawing(figure, {"shares": "; ".join(shares)})


@styled
def trace_windows(table, *, models):
    """Shares recovered by MLPs and attention at all subject tokens, by the number of layers restored together."""
    table, columns = _select_t1(table[table.kind.isin(vocabulary.WINDOWED_KINDS)], models, "recovered", "necessary")
    table = table[(table.reading == "recovered") & (table.role == SUBJECT)]
    kinds = [kind for kind in vocabulary.WINDOWED_KINDS if kind in set(table.kind)]
    if not columns or not kinds:
        return draw_empty(NO_TRACES)
    figure, handles, shares = new_figure(110 * len(kinds) + 70), {}, []
    grid = figure.subplots(len(kinds), len(columns), squeeze=False, sharey=True, sharex=True)
    window_looks = [(SKY, "o", "-"), (BLUE, "s", "--"), ("#003f66", "^", ":")]
    for axes_row, kind in zip(grid, kinds, strict=True):
        for axes, panel in zip(axes_row, columns, strict=True):
            rows = select_panel(table, panel)
            rows = rows[rows.kind == kind]
            for window, look in zip(sorted(rows.window.unique()), window_looks, strict=False):
                label = pluralize(window, "layer") + (" together" if window > 1 else "")
                handles[label] = _draw_curve(axes, rows[rows.window == window], "layer", look)
            if len(rows):
                top = rows.loc[rows["mean"].idxmax()]
                window = pluralize(top.window, "layer")
                shares.append(f"{panel.title}, {KINDS[kind]} {percent(top['mean'])} with {window}")
    for axes, panel in zip(grid[0], columns, strict=True):
        axes.set_title(f"{panel.title.replace(': ', chr(10))}\n{_count_facts(select_panel(table, panel))}")
    _label_curves(figure, grid, handles, "share recovered")
    _limit_shares(grid)
    for axes, kind in zip(grid[:, 0], kinds, strict=True):
        axes.set_ylabel(f"{KINDS[kind]}: share recovered")
    return Drawing(figure, {"shares": "; ".join(shares)})


TOKEN_GROUPS = {  # {label: (word in the role, colour, marker)}
    "the subject": ("subject", BLUE, "o"),
    "the answer": ("answer", GREEN, "^"),
    "other tokens": ("", FAINT, "s"),
}


@styled
def trace_directions(table, *, models):
    """Indirect effects of all hidden states for people trained in one direction against those trained in the other.

    A panel for each question; a point is a token role at a layer.
    """
    table, _ = _select_t1(table[table.kind == "state"], models, "indirect")
    model = first_model(models, "diffusion")
    table = table[(table.model == model) & table.role.isin(vocabulary.SINGLE_ROLES) & (table.n > 1)]
    pairs = {"descriptions": ("p2d_same", "d2p_reverse"), "names": ("d2p_same", "p2d_reverse")}
    pairs = {question: pair for question, pair in pairs.items() if set(pair) <= set(table.split)}
    if not pairs:
        return draw_empty("No question was traced for people trained in both directions.")
    figure, handles, counts = new_figure(235), {}, []
    grid = figure.subplots(1, len(pairs), squeeze=False)
    for axes, (question, pair) in zip(grid[0], pairs.items(), strict=True):
        sites = table.pivot_table(index=["role", "layer"], columns="split", values="mean")[list(pair)].dropna()
        roles = sites.index.get_level_values("role")
        groups = [next(label for label, (word, *_) in TOKEN_GROUPS.items() if word in role) for role in roles]
        for label, (_, color, marker) in TOKEN_GROUPS.items():
            points = sites[[group == label for group in groups]]
            options = {"color": color, "marker": marker, "alpha": 0.6, "linewidths": 0}
            handles[f"states of {label}"] = axes.scatter(points[pair[0]], points[pair[1]], s=14, **options)
        ends = (float(sites.min().min()), float(sites.max().max()))
        axes.plot(ends, ends, color=FAINT, linewidth=0.7)
        axes.set_title(f"{choose_looks(models)[model].label}: {question}, {pluralize(len(sites), 'state')}")
        axes.set_xlabel("indirect effect (nats), same direction", labelpad=1)
        below, largest = int((sites[pair[1]] < sites[pair[0]]).sum()), number(ends[1], 1)
        counts.append(f"{question}, {below} of {len(sites)} below the line, the largest effect {largest} nats")
    grid[0, 0].set_ylabel("indirect effect (nats),\nreverse direction")
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    return Drawing(figure, {"questions": "; ".join(counts)})


TOTAL_EFFECTS = {  # {(what is corrupted, how): (label, look)}
    ("subject", None): ("subject corrupted", (BLUE, "o", "-")),
    ("revealed", "swap"): ("revealed tokens replaced", (VERMILLION, "s", "-")),
    ("revealed", "mask"): ("revealed tokens masked", (VERMILLION, "v", ":")),
    ("both", "swap"): ("subject corrupted and tokens replaced", (FAINT, "x", "--")),
}


# Descriptions come first: a name of two tokens has hardly any steps.
SAME_DIRECTION = ("p2d_same", "both_p2d", "d2p_same", "known_p2d")
REVERSE_DIRECTION = ("d2p_reverse", "p2d_reverse", "both_d2p", "known_d2p")


@styled
def handover(table, *, models):
    """Total effects on the tokens still to come, as the answer appears: of the subject, and of revealed answer tokens.

    `table` is time.csv, here and below. A point needs at least half of the facts.
    """
    table = table[(table.reading == "sequential") & table.revealed.notna() & (table.n > 1)]
    table = table[table.seed == table.seed.min()]
    revealed = table[table.corrupted == "revealed"]
    traced = set(zip(revealed.model, revealed.split, strict=True))
    columns = choose_panels(traced, models, (SAME_DIRECTION, REVERSE_DIRECTION))
    if not columns:
        return draw_empty("No answer was revealed in more than one step.")
    figure, handles, courses = new_figure(220), {}, []
    grid = figure.subplots(1, len(columns), squeeze=False, sharey=True)
    for axes, panel in zip(grid[0], columns, strict=True):
        panel_rows = select_panel(table, panel)
        panel_rows = panel_rows[panel_rows.n >= panel_rows.n.max() / 2]
        for (corrupted, kind), (label, look) in TOTAL_EFFECTS.items():
            rows = panel_rows[panel_rows.corrupted == corrupted]
            rows = rows[rows.kind.isna() if kind is None else rows.kind == kind]
            if len(rows):
                handles[label] = _draw_curve(axes, rows, "revealed", look)
        fewest, facts = panel_rows.n.min(), _count_facts(panel_rows)
        facts = facts if fewest == panel_rows.n.max() else f"{fewest:.0f} to {facts}"
        axes.set_title(f"{panel.title.replace(': ', chr(10))}\n{facts}")
        effects = panel_rows[panel_rows.corrupted == "subject"].sort_values("revealed")["mean"]
        first, last = number(effects.iloc[0]), number(effects.iloc[-1])
        courses.append(f"{panel.title}, corrupting the subject costs {first} nats first, {last} last")
    _label_curves(figure, grid, handles, "nats lost of tokens to come", "answer tokens revealed", columns=2)
    return Drawing(figure, {"courses": "; ".join(courses)})


TESTS = (*RECALL_SPLITS, *KNOWN)
SCHEDULES = {
    "from": ("subject corrupted from this step on", (VERMILLION, "s", "-")),
    "until": ("subject corrupted up to this step", (BLUE, "o", "-")),
}


MODULES = {"mlp": (PURPLE, "^", -0.12), "attn": (GREEN, "D", 0.12)}


@styled
def corrupted_steps(table, *, models):
    """Recall of the finished answer with the subject corrupted at some of the steps.

    Below, by layer, with the output of one module at the subject corrupted at all steps.
    """
    table = table[(table.reading == "recall") & (table.model == first_model(models, "diffusion"))]
    table = table[table.seed == table.seed.min()]
    subject, modules = table[table.kind == "subject"], table[(table.kind != "subject") & (table.corrupted == "from")]
    modules = modules[modules.step == modules.step.min()]
    tests = [split for split in TESTS if split in set(subject.split)]
    if not tests:
        return draw_empty(NO_TRACES)
    height = 1 + bool(len(modules))
    figure, handles, alt_texts = new_figure(60 + 125 * height), {}, []
    grid = figure.subplots(height, len(tests), squeeze=False, sharey=True)
    for axes, split in zip(grid[0], tests, strict=True):
        rows = subject[subject.split == split]
        for schedule, (label, look) in SCHEDULES.items():
            handles[label] = _draw_curve(axes, rows[rows.corrupted == schedule], "step", look)
        title = describe_split(split).replace(", ", ",\n")
        axes.set_title(f"{title}\n{_count_facts(rows)}")
        axes.set_xlabel("denoising step", labelpad=1)
        latest = rows[(rows.corrupted == "until") & (rows["mean"] >= 0.5)].step.max()
        alt_texts.append(f"{describe_split(split)}, half are right if it is corrupted up to step {latest:.0f}")
    for axes, split in zip(grid[1] if height > 1 else (), tests, strict=False):
        split_rows = modules[modules.split == split]
        for kind, (color, marker, shift) in MODULES.items():
            rows = split_rows[split_rows.kind == kind].sort_values("layer")
            if len(rows):
                x = rows.layer.astype(float) + shift
                label = f"{KINDS[kind]} of one layer corrupted at all steps"
                look = {"color": color, "marker": marker, "linestyle": "", "markersize": 4}
                handles[label] = draw_intervals(axes, x, rows, "mean", scale=1, interval=FAINT_INTERVAL, **look)
                worst = rows.loc[rows["mean"].idxmin()]
                site = f"{KINDS[kind]} of layer {worst.layer:.0f}"
                alt_texts.append(f"{describe_split(split)}, {percent(worst['mean'])} right without the {site}")
        axes.set_title(_count_facts(split_rows))
        axes.set_xlabel("layer", labelpad=1)
    for axes in grid.flat:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_formatter(lambda share, _: percent(share))
        axes.set_ylim(-0.06, 1.06)
    for axes in grid[:, 0]:
        axes.set_ylabel("answers right")
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2)
    return Drawing(figure, {"tests": "; ".join(alt_texts)})


@styled
def trace_map(trace: FactTrace, *, kind: str = "state", corruption: str | None = None) -> Figure:
    """One trace drawn as in `trace_facts`, under its prompt: a matplotlib figure.

    `kind` is "state", "mlp" or "attn", if it was traced; `corruption` is the leading one unless another is named.
    """
    trace.effects(kind, corruption)  # an error names the kinds and corruptions that were traced
    corruption = corruption or vocabulary.choose_corruption(trace.kinds)
    answer = "".join(trace.metadata["tokens"][slice(*trace.metadata["answer"])]).strip()
    return _draw_maps([(plain(trace.metadata["prompt"]), plain(answer), trace)], corruption, kind)
