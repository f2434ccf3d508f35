"""The matrix of claims and runs: which claims of the article hold in which run."""

from .sheet import BOX, MARGIN, Sheet
from .style import (
    FAINT,
    GREEN,
    INK,
    PALE,
    POINTS,
    SMALL,
    VERMILLION,
    Drawing,
    draw_empty,
    elide,
    pluralize,
    styled,
)

RUNS = {"this": "this run", "seeds": "five seeds", "published": "published"}
# {verdict: its colour, the colour of its word}
COLORS = {
    "holds": ("#cfe8dc", GREEN),
    "fails": (VERMILLION, "white"),
    "inconclusive": ("#fde3c8", INK),
    "not measured": (PALE, FAINT),
}
WIDTH = 52  # of a column, in points
LETTER = 0.53  # mean width of a letter of the proportional type, in sizes


@styled
def claims(table, claim_list):
    """A row for each claim of `claim_list`, a column for each run of `table`, and the verdict in each cell.

    A claim about runs that have not been made yet, because it was written down first, has no row.
    """
    if table.empty:
        return draw_empty("There are no claims.")
    runs, verdicts = list(dict.fromkeys(table.run)), table.set_index(["claim", "run"]).verdict
    claim_list = [claim for claim in claim_list if not claim.get("runs") or {*claim["runs"]} & {*runs}]
    sheet = Sheet()
    left = POINTS - MARGIN - WIDTH * len(runs)
    sheet.y += 10
    for i, run in enumerate(runs):
        sheet.text(left + (i + 0.5) * WIDTH, sheet.y, RUNS.get(run, run), ha="center", size=SMALL, fontweight="bold")
    sheet.y += 5
    room = int((left - MARGIN - 4) / (LETTER * SMALL))
    for claim in claim_list:
        sheet.text(MARGIN, sheet.y + 11, elide(claim.get("short", claim["id"].replace("-", " ")), room), size=SMALL)
        for i, run in enumerate(runs):
            verdict = verdicts[claim["id"], run]
            fill, ink = COLORS[verdict]
            sheet.box(left + i * WIDTH, sheet.y, WIDTH - 2, BOX, facecolor=fill, edgecolor="none")
            word = "–" if verdict == "not measured" else verdict
            sheet.text(left + (i + 0.5) * WIDTH - 1, sheet.y + 10.5, word, ha="center", size=SMALL, color=ink)
        sheet.y += BOX + 2
    counts = {run: verdicts.xs(run, level="run").value_counts() for run in runs}
    said = "; ".join(
        f"{RUNS.get(run, run)}: " + ", ".join(f"{count} {verdict}" for verdict, count in counts[run].items())
        for run in runs
    )
    return Drawing(sheet.finish(), {"claims": pluralize(len(claim_list), "claim"), "verdicts": said})
