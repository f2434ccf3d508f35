"""What a model is taught, and what it recalls: every objective at a glance, and recall against passes over the data."""

from matplotlib.lines import Line2D

from .read import last
from .style import GREY, INK, RULE, SMALL, Drawing, blank, looks, nothing, percent, styled

ROW = 15  # points
# Colours are of families elsewhere.
MARKS = {"name": (INK, "o"), "description": (GREY, "D")}
LINES = {"name": "-", "description": ":"}
PANELS = {"same": "as taught", "reverse": "in reverse"}
FILLS = {True: {}, None: {"fillstyle": "left", "markerfacecoloralt": "white"}, False: {"markerfacecolor": "white"}}
PREDICTED = {
    True: "Subject predicted from the object",
    None: "… in some visits",
    False: "… never",
}


def called(row):
    """What a row of the table of objectives was taught, in few words."""
    protect = row.protect if row.people != "protected" else "none"
    if row.family == "autoregressive":
        words = "next token, half of the rows backwards" if "reversed" in row.train_on else "next token"
        words += {"none": "", "subject": ", never the subject's", "prompt": ", the answer's alone"}[protect]
    else:
        what = {"mask": "masked", "uniform": "replaced", "gaussian": "blurred"}[row.noise]
        words = f"any token {what}" if row.rate == "uniform" else f"{percent(float(row.rate))} of the tokens {what}"
        words += {"none": "", "subject": " but the subject", "prompt": " of the answer's part"}.get(protect, "")
        if protect == "subject" and row.exposure:
            words = f"the subject {what} in {percent(row.exposure)} of visits"
        if protect == "subject_given_object":
            words = f"the subject {what} only with the object"
        if row.noise == "mask" and row.time_conditioning == "embedded":
            words += ", the time told"
    if protect != "none" and row.people != "all":
        words += f" of {percent(float(row.people))} of the people"
    return words + (", named elsewhere" if "mentions" in row.train_on else "")


def predicted_from_object(row):
    """Whether training has the subject of a row's people predicted with the object in sight; None: by a exposure."""
    if row.protected:
        return None if row.exposure else False
    return row.family == "diffusion" or "reversed" in row.train_on


def _last(table):
    """Answers in the most steps, and those that take none, with the words for each row."""
    table = last(table)
    rows = list(table.itertuples())
    return table.assign(predicted=[predicted_from_object(row) for row in rows], called=[called(row) for row in rows])


@styled
def objectives(table, *, models):
    """A row for each objective; in each direction a mark with its interval for names and for descriptions."""
    table = _last(table)
    if table.empty:
        return nothing("No model was asked.")
    places, ticks = {}, []
    first = {}  # of people of several kinds, those whose subject is predicted most say where a model stands
    for predicted in PREDICTED:
        for model in table[[one is predicted for one in table.predicted]].model:
            first.setdefault(model, predicted)
    for predicted, title in PREDICTED.items():
        own = [model for model, where in first.items() if where is predicted]
        ticks += [title] if own else []
        for model in own:
            places[model] = len(ticks)
            ticks.append(table[table.model == model].called.iloc[0])
    figure = blank(ROW * len(ticks) + 75)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (trained, title) in zip(panels, PANELS.items(), strict=True):
        for row in table[table.trained == trained].itertuples():
            _mark(axes, row, places[row.model])
        for at in places.values():
            axes.axhline(at, color=RULE, linewidth=0.4, zorder=0)
        axes.set_title(title)
        axes.set_xlabel("answers right, %")
        axes.set_xlim(-4, 104)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    panels[0].set_ylim(len(ticks) - 0.4, -0.6)
    panels[0].set_yticks(range(len(ticks)), ticks, fontsize=SMALL)
    for label in panels[0].get_yticklabels():
        label.set_fontweight("bold" if label.get_text() in PREDICTED.values() else "normal")
    keys = [
        Line2D([], [], color=color, marker=marker, linestyle="", label=f"{answer_type}s")
        for answer_type, (color, marker) in MARKS.items()
    ]
    said = {True: "filled: subject predicted", None: "half-filled: in some visits", False: "hollow: never"}
    keys += [
        Line2D([], [], color=INK, marker="o", linestyle="", label=label, **FILLS[predicted])
        for predicted, label in said.items()
        if any(one is predicted for one in table.predicted)
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), columnspacing=1.2)
    return Drawing(figure, {"recalled": "; ".join(_said(table, model) for model in places)})


def _mark(axes, row, place):
    """One share with its interval."""
    color, marker = MARKS[row.answer_type]
    at, width = place + (-0.17 if row.answer_type == "name" else 0.17), 0.6 if row.predicted is False else 1.1
    axes.plot([100 * row.ci_low, 100 * row.ci_high], [at, at], color=color, linewidth=width, zorder=2)
    how = {"color": color, "markersize": 4.6, "linestyle": "", "zorder": 3} | FILLS[row.predicted]
    axes.plot(100 * row.accuracy, at, marker=marker, **how)


def _said(table, model):
    own = table[(table.model == model) & (table.trained == "reverse")]
    words = []
    for protected, rows in own.groupby("protected"):
        shares = ", ".join(f"{row.answer_type}s {percent(row.accuracy)}" for row in rows.sort_values("answer_type").itertuples())
        # Where the objective protects everybody, its name says so.
        words.append(f"of people protected {shares}" if protected and own.protected.nunique() > 1 else shares)
    return f"{table[table.model == model].called.iloc[0]}: {', '.join(words)}"


@styled
def epochs(table, *, models):
    """Recall and held-out loss against passes over the data and operations; beside them three shapes, and the time."""
    table = _last(table)
    table = table[~table.protected & (table.noise == "mask")]
    table = table.assign(shaped=table.model.str.contains("small|middle|large"))
    passes = table[~table.shaped & (table.time_conditioning == "none")]
    if passes.empty:
        return nothing("No model was asked.")
    figure = blank(340)
    places = figure.subplots(2, 3).ravel()
    pair = looks({"mdm": "diffusion", "ar": "autoregressive"})
    look = {"diffusion": pair["mdm"], "autoregressive": pair["ar"]}
    said, reverse = [], table[table.trained == "reverse"]
    for axes, trained in zip(places, PANELS, strict=False):
        said += _against(axes, passes[passes.trained == trained], look, "epochs")
        axes.set_title(f"{PANELS[trained]}, by passes")
    _against(places[2], passes[passes.trained == "reverse"], look, "flops")
    places[2].set_title(f"{PANELS['reverse']}, by operations")
    _against(places[3], passes[passes.trained == "same"], look, "epochs", loss=True)
    places[3].set_title("loss on new templates")
    timed = reverse[~reverse.shaped & (reverse.family == "diffusion")]
    _timed(
        places[4], timed[timed.epochs == timed[timed.time_conditioning == "embedded"].epochs.max()], look["diffusion"]
    )
    handles = places[0].get_legend_handles_labels()
    if table.shaped.any():
        _shapes(places[5], reverse[reverse.shaped], look)
        figure.legend(*handles, loc="outside lower center", ncols=4)
    else:
        places[5].axis("off")
        places[5].legend(*handles, loc="center")
    return Drawing(figure, {"recalled": "; ".join(said)})


def _against(axes, table, look, x, *, loss=False):
    """Lines of recall, or of the held-out loss, one a family and question; what they say."""
    said = []
    for (family, answer_type), rows in table.groupby(["family", "answer_type"], sort=False):
        rows, label = rows.sort_values(x), f"{look[family].label}, {answer_type}s"
        how = {"color": look[family].color, "marker": look[family].marker, "linestyle": LINES[answer_type], "markersize": 4}
        axes.plot(rows[x], -rows.log_likelihood if loss else 100 * rows.accuracy, label=label, **how)
        if not loss:
            axes.vlines(rows[x], 100 * rows.ci_low, 100 * rows.ci_high, color=look[family].color, linewidth=0.9)
        told = ", ".join(f"{row.epochs} {percent(row.accuracy)}" for row in rows.itertuples())
        said.append(f"{label} {PANELS[rows.trained.iloc[0]]}, by passes: {told}")
    axes.set_xscale("log")
    axes.set_xlabel("passes")
    if loss:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_ylabel("nats an answer")
    else:
        _percents(axes)
    if x == "epochs":
        ticks = sorted(table.epochs.unique())
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
    else:
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e12:g}")
        axes.set_xlabel("operations of training, 10¹²")
    axes.minorticks_off()
    return said


def _percents(axes):
    axes.set_ylim(-4, 104)
    axes.set_ylabel("answers right, %")


def _shapes(axes, table, look):
    """Recall by shape."""
    shapes = sorted({(row.width, row.layers) for row in table.itertuples()})
    for (family, answer_type), rows in table.groupby(["family", "answer_type"], sort=False):
        rows = rows.sort_values(["width", "layers"])
        x = [shapes.index((row.width, row.layers)) for row in rows.itertuples()]
        how = {"color": look[family].color, "marker": look[family].marker, "linestyle": LINES[answer_type], "markersize": 4}
        axes.plot(x, 100 * rows.accuracy, **how)
        axes.vlines(x, 100 * rows.ci_low, 100 * rows.ci_high, color=look[family].color, linewidth=0.9)
    axes.set_xticks(range(len(shapes)), [f"{layers}×{width}" for width, layers in shapes])
    axes.set_xlabel("layers × width")
    axes.set_title("in reverse, by shape")
    _percents(axes)


def _timed(axes, table, look):
    """Recall with the time told and not."""
    for answer_type, rows in table.groupby("answer_type", sort=False):
        at = rows.time_conditioning.map({"none": 0, "embedded": 1}) + (-0.04 if answer_type == "name" else 0.04)
        rows = rows.assign(at=at).sort_values("at")
        axes.vlines(rows["at"], 100 * rows.ci_low, 100 * rows.ci_high, color=look.color, linewidth=0.9)
        how = {"color": look.color, "marker": look.marker, "linestyle": LINES[answer_type], "markersize": 4}
        axes.plot(rows["at"], 100 * rows.accuracy, **how)
    axes.set_xticks([0, 1], ["time not told", "told"])
    axes.set_xlim(-0.5, 1.5)
    axes.set_title("in reverse, told the time")
    _percents(axes)
