"""What bases know without being taught: the same people asked about forward and in reverse."""

from ..data.facts import KNOWN
from .style import FAINT, PALE, TAUGHT, Drawing, blank, looks, nothing, offsets, percent, styled


@styled
def known(recall, likelihood, *, models):
    """Dots with intervals for each question: right answers, and how much likelier the right answer is than a wrong one.

    Of the numbers of denoising steps the greatest is shown.
    """
    if recall.empty:
        return nothing("Nobody was asked anything.")
    last = recall[recall.steps.isna() | (recall.steps == recall.groupby("model").steps.transform("max"))]
    styles = looks(models)
    figure = blank(60 + 30 * len(styles))
    share, ratio = figure.subplots(1, 2, sharey=True)
    for number, (split, way) in enumerate(KNOWN.items()):
        for shift, (name, look) in zip(offsets(len(styles), 0.3), styles.items(), strict=True):
            for axes, table, value, scale in ((share, last, "accuracy", 100), (ratio, likelihood, "difference", 1)):
                rows = table[(table.split == split) & (table.model == name)]
                y = [number + shift] * len(rows)
                axes.hlines(y, scale * rows.ci_low, scale * rows.ci_high, color=look.color)
                label = look.label if way.answer_type == "description" else None
                axes.plot(scale * rows[value], y, look.marker, color=look.color, label=label)
    for axes in (share, ratio):
        axes.grid(axis="x", color=PALE)
        axes.set_axisbelow(True)
    share.set(xlim=(-4, 104), ylim=(len(KNOWN) - 0.5, -0.5), title="Answers right", xlabel="%")
    ratio.set(title="Right answer likelier than a wrong one", xlabel="log p(right) − log p(wrong), nats")
    ratio.axvline(0, color=FAINT, linewidth=0.8, linestyle=":")
    share.set_yticks(range(len(KNOWN)), [TAUGHT[split] for split in KNOWN])
    figure.legend(*share.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return Drawing(figure, {"recalled": "; ".join(_recalled(last, styles))})


def _recalled(last, styles):
    """In words, for each model: how many of the parents it names, and of the children."""
    for name, look in styles.items():
        shares = [percent(last[(last.model == name) & (last.split == split)].accuracy.mean()) for split in KNOWN]
        yield f"{look.label} {' and '.join(shares)}"
