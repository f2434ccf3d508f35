"""What bases know from pretraining: recall and likelihood of the same people's facts in both directions."""

from ..data.facts import KNOWN
from .style import (
    DIRECTION_LABELS,
    FAINT,
    PALE,
    Drawing,
    choose_looks,
    draw_empty,
    new_figure,
    offsets,
    percent,
    styled,
)


@styled
def known(recall, likelihood, *, models):
    """Dots with intervals per direction: correct answers, and the log-ratio of a correct and a wrong answer.

    Diffusion models are shown with the most denoising steps.
    """
    if recall.empty:
        return draw_empty("There are no answers to show.")
    recall = recall[recall.steps.isna() | (recall.steps == recall.groupby("model").steps.transform("max"))]
    styles = choose_looks(models)
    figure = new_figure(60 + 30 * len(styles))
    share, ratio = figure.subplots(1, 2, sharey=True)
    for number, (name, split) in enumerate(KNOWN.items()):
        for shift, (model, look) in zip(offsets(len(styles), 0.3), styles.items(), strict=True):
            for axes, table, value, scale in ((share, recall, "accuracy", 100), (ratio, likelihood, "difference", 1)):
                rows = table[(table.split == name) & (table.model == model)]
                y = [number + shift] * len(rows)
                axes.hlines(y, scale * rows.ci_low, scale * rows.ci_high, color=look.color)
                label = look.label if split.answer_type == "description" else None
                axes.plot(scale * rows[value], y, look.marker, color=look.color, label=label)
    for axes in (share, ratio):
        axes.grid(axis="x", color=PALE)
        axes.set_axisbelow(True)
    share.set(xlim=(-4, 104), ylim=(len(KNOWN) - 0.5, -0.5), title="Correct answers", xlabel="%")
    ratio.set(title="Correct against wrong answer", xlabel="log p(correct) − log p(wrong), nats")
    ratio.axvline(0, color=FAINT, linewidth=0.8, linestyle=":")
    share.set_yticks(range(len(KNOWN)), [DIRECTION_LABELS[split] for split in KNOWN])
    figure.legend(*share.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return Drawing(figure, {"recalled": "; ".join(_list_recall(recall, styles))})


def _list_recall(recall, styles):
    """In words, for each model: its recall of parents and of children."""
    for name, look in styles.items():
        shares = [percent(recall[(recall.model == name) & (recall.split == split)].accuracy.mean()) for split in KNOWN]
        yield f"{look.label} {' and '.join(shares)}"
