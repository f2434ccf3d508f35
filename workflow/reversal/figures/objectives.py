"""Recall by training objective, and recall by epochs, network shape and time conditioning."""

from matplotlib.lines import Line2D

from ..recall.objectives import predicts_subject_from_object
from .read import select_most_steps
from .style import (
    GREY,
    INK,
    RULE,
    SMALL,
    Drawing,
    choose_looks,
    draw_empty,
    draw_intervals,
    new_figure,
    percent,
    styled,
)

ROW = 15  # points
# Elsewhere colours stand for families: here answers differ by grey and marker.
MARKS = {"name": (INK, "o"), "description": (GREY, "D")}
LINES = {"name": "-", "description": ":"}
PANELS = {"same": "same direction", "reverse": "reverse direction"}
# By whether training predicts the subject from the object: always, in some presentations (None), never.
FILLS = {True: {}, None: {"fillstyle": "left", "markerfacecoloralt": "white"}, False: {"markerfacecolor": "white"}}
HEADINGS = {
    True: "Subject predicted from the object",
    None: "… in some presentations",
    False: "… never",
}


def describe_objective(row):
    """The training objective of a row of the table of objectives, in few words."""
    protect = row.protect if row.people != "control" else "none"
    if row.family == "autoregressive":
        words = "next token, half of the rows backwards" if "reversed" in row.train_on else "next token"
        words += {"none": "", "subject": ", never the subject's", "prompt": ", the answer's alone"}[protect]
        if getattr(row, "masked_context", 0):
            words += f", {percent(row.masked_context)} of the rows after a masked copy"
    else:
        noised = {"mask": "masked", "uniform": "replaced", "gaussian": "blurred"}[row.noise]
        words = f"any token {noised}" if row.rate == "uniform" else f"{percent(float(row.rate))} of the tokens {noised}"
        words += {"none": "", "subject": " but the subject", "prompt": " of the answer's part"}.get(protect, "")
        if protect == "subject" and row.exposure:
            words = f"the subject {noised} in {percent(row.exposure)} of presentations"
        if protect == "subject_given_object":
            words = f"the subject {noised} only with the object"
        if row.noise == "mask" and row.time_conditioning == "embedded":
            words += ", time-conditioned"
        if getattr(row, "whole_entities", False):
            words += ", whole entities"
    if protect != "none" and row.people != "all":
        words += f" of {percent(float(row.people))} of the people"
    if getattr(row, "positions", "rotary") != "rotary":
        words += f", {row.positions} positions".replace("none", "no")
    kinds = row.train_on.split("+")
    added = {"mentions": "named elsewhere", "control_mentions": "control named elsewhere", "identity": "“A is A”"}
    return words + "".join(f", {text}" for kind, text in added.items() if kind in kinds)


def _add_descriptions(table):
    """The rows with the most denoising steps, with the columns `predicted` and `description` of their objective."""
    table = select_most_steps(table)
    rows = list(table.itertuples())
    return table.assign(
        predicted=[predicts_subject_from_object(row) for row in rows],
        description=[describe_objective(row) for row in rows],
    )


@styled
def objectives(table, *, models):
    """A row for each objective; in each direction a mark with its interval for names and for descriptions."""
    table = _add_descriptions(table)
    if table.empty:
        return draw_empty("No model was tested.")
    # A model that protects only some people is listed under the heading of the others.
    headings = {}
    for predicted in HEADINGS:
        for model in table[[value is predicted for value in table.predicted]].model:
            headings.setdefault(model, predicted)
    places, ticks = {}, []
    for predicted, heading in HEADINGS.items():
        listed = [model for model, value in headings.items() if value is predicted]
        ticks += [heading] if listed else []
        for model in listed:
            places[model] = len(ticks)
            ticks.append(table[table.model == model].description.iloc[0])
    figure = new_figure(ROW * len(ticks) + 75)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (trained, title) in zip(panels, PANELS.items(), strict=True):
        for row in table[table.trained == trained].itertuples():
            _draw_mark(axes, row, places[row.model])
        for y in places.values():
            axes.axhline(y, color=RULE, linewidth=0.4, zorder=0)
        axes.set_title(title)
        axes.set_xlabel("correct answers, %")
        axes.set_xlim(-4, 104)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    panels[0].set_ylim(len(ticks) - 0.4, -0.6)
    panels[0].set_yticks(range(len(ticks)), ticks, fontsize=SMALL)
    for label in panels[0].get_yticklabels():
        label.set_fontweight("bold" if label.get_text() in HEADINGS.values() else "normal")
    handles = [
        Line2D([], [], color=color, marker=marker, linestyle="", label=f"{answer_type}s")
        for answer_type, (color, marker) in MARKS.items()
    ]
    labels = {True: "filled: subject predicted", None: "half-filled: in some presentations", False: "hollow: never"}
    handles += [
        Line2D([], [], color=INK, marker="o", linestyle="", label=label, **FILLS[predicted])
        for predicted, label in labels.items()
        if any(value is predicted for value in table.predicted)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), columnspacing=1.2)
    return Drawing(figure, {"recalled": "; ".join(_describe_recall(table, model) for model in places)})


def _draw_mark(axes, row, place):
    """One share with its interval."""
    color, marker = MARKS[row.answer_type]
    y, width = place + (-0.17 if row.answer_type == "name" else 0.17), 0.6 if row.predicted is False else 1.1
    axes.plot([100 * row.ci_low, 100 * row.ci_high], [y, y], color=color, linewidth=width, zorder=2)
    style = {"color": color, "markersize": 4.6, "linestyle": "", "zorder": 3} | FILLS[row.predicted]
    axes.plot(100 * row.accuracy, y, marker=marker, **style)


def _describe_recall(table, model):
    """Recall of a model in the reverse direction, in words; people whom it protects apart from the others."""
    own = table[(table.model == model) & (table.trained == "reverse")]
    parts = []
    for protected, rows in own.groupby("protected"):
        rows = rows.sort_values("answer_type").itertuples()
        shares = ", ".join(f"{row.answer_type}s {percent(row.accuracy)}" for row in rows)
        # If the model protects everybody, the description of its objective says so.
        parts.append(f"protected people {shares}" if protected and own.protected.nunique() > 1 else shares)
    return f"{table[table.model == model].description.iloc[0]}: {', '.join(parts)}"


@styled
def epochs(table, *, models):
    """Recall by epochs and operations, held-out loss, recall by time conditioning and by network shape."""
    table = _add_descriptions(table)
    table = table[~table.protected & (table.noise == "mask")]
    table = table.assign(has_shape=table.model.str.contains("small|middle|large"))
    by_epochs = table[~table.has_shape & (table.time_conditioning == "none")]
    if by_epochs.empty:
        return draw_empty("No model was tested.")
    figure = new_figure(340)
    panels = figure.subplots(2, 3).ravel()
    pair = choose_looks({"mdm": "diffusion", "ar": "autoregressive"})
    looks = {"diffusion": pair["mdm"], "autoregressive": pair["ar"]}
    descriptions, reverse = [], table[table.trained == "reverse"]
    for axes, trained in zip(panels, PANELS, strict=False):
        descriptions += _draw_lines(axes, by_epochs[by_epochs.trained == trained], looks, "epochs")
        axes.set_title(f"{trained}, by epochs")
    _draw_lines(panels[2], by_epochs[by_epochs.trained == "reverse"], looks, "flops")
    panels[2].set_title("reverse, by operations")
    _draw_lines(panels[3], by_epochs[by_epochs.trained == "same"], looks, "epochs", loss=True)
    panels[3].set_title("loss on new templates")
    timed = reverse[~reverse.has_shape & (reverse.family == "diffusion")]
    most_epochs = timed[timed.time_conditioning == "embedded"].epochs.max()
    _draw_time_conditioning(panels[4], timed[timed.epochs == most_epochs], looks["diffusion"])
    handles = panels[0].get_legend_handles_labels()
    if table.has_shape.any():
        _draw_shapes(panels[5], reverse[reverse.has_shape], looks)
        figure.legend(*handles, loc="outside lower center", ncols=4)
    else:
        panels[5].axis("off")
        panels[5].legend(*handles, loc="center")
    return Drawing(figure, {"recalled": "; ".join(descriptions)})


def _draw_lines(axes, table, looks, x, *, loss=False):
    """Lines of recall, or of the held-out loss, one per family and kind of answer; returns them in words."""
    descriptions = []
    for (family, answer_type), rows in table.groupby(["family", "answer_type"], sort=False):
        rows, label = rows.sort_values(x), f"{looks[family].label}, {answer_type}s"
        style = _style_line(looks[family], answer_type)
        if loss:
            axes.plot(rows[x], -rows.log_likelihood, **style)
        else:
            draw_intervals(axes, rows[x], rows, label=label, **style)
        shares = ", ".join(f"{row.epochs} {percent(row.accuracy)}" for row in rows.itertuples())
        descriptions.append(f"{label}, {PANELS[rows.trained.iloc[0]]}, by epochs: {shares}")
    axes.set_xscale("log")
    axes.set_xlabel("epochs")
    if loss:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_ylabel("nats per answer")
    else:
        _set_percent_axis(axes)
    if x == "epochs":
        ticks = sorted(table.epochs.unique())
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
    else:
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e12:g}")
        axes.set_xlabel("operations of training, 10¹²")
    axes.minorticks_off()
    return descriptions


def _style_line(look, answer_type):
    return {"color": look.color, "marker": look.marker, "linestyle": LINES[answer_type], "markersize": 4}


def _set_percent_axis(axes):
    axes.set_ylim(-4, 104)
    axes.set_ylabel("correct answers, %")


def _draw_shapes(axes, table, looks):
    """Recall by network shape."""
    shapes = sorted({(row.width, row.layers) for row in table.itertuples()})
    for (family, answer_type), rows in table.groupby(["family", "answer_type"], sort=False):
        rows = rows.sort_values(["width", "layers"])
        x = [shapes.index((row.width, row.layers)) for row in rows.itertuples()]
        draw_intervals(axes, x, rows, **_style_line(looks[family], answer_type))
    axes.set_xticks(range(len(shapes)), [f"{layers}×{width}" for width, layers in shapes])
    axes.set_xlabel("layers × width")
    axes.set_title("reverse, by shape")
    _set_percent_axis(axes)


def _draw_time_conditioning(axes, table, look):
    """Recall with and without time conditioning."""
    for answer_type, rows in table.groupby("answer_type", sort=False):
        x = rows.time_conditioning.map({"none": 0, "embedded": 1}) + (-0.04 if answer_type == "name" else 0.04)
        rows = rows.assign(x=x).sort_values("x")
        draw_intervals(axes, rows.x, rows, **_style_line(look, answer_type))
    axes.set_xticks([0, 1], ["no time", "time"])
    axes.set_xlim(-0.5, 1.5)
    axes.set_title("reverse, time-conditioned")
    _set_percent_axis(axes)
