"""The matrix of claims and runs: which claims of the article hold in which run."""

from .sheet import BOX, MARGIN, Sheet
from .style import GREEN, INK, POINTS, SMALL, VERMILLION, Drawing, draw_empty, elide, pluralize, styled

RUNS = {"this": "this run", "published_blocks": "pub. blocks"}
# {verdict: the colour of its box, of its word, and a sign for those who see no colours}
LOOKS = {
    "holds": ("#cfe8dc", GREEN, "✓"),
    "inconclusive": ("#fde3c8", INK, "?"),
    "fails": (VERMILLION, "white", "✗"),
}
WIDTH = 60  # of a box, in points
LETTER = 0.53  # mean width of a letter of the proportional type, in sizes


@styled
def claims(table, claim_list):
    """A row for each claim of `claim_list`, with a box for each run of `table` that measures it.

    A claim about runs that have not been made yet, because it was written down first, has no row.
    """
    if table.empty:
        return draw_empty("There are no claims.")
    runs, verdicts = list(dict.fromkeys(table.run)), table.set_index(["claim", "run"]).verdict
    claim_list = [claim for claim in claim_list if not claim.get("runs") or {*claim["runs"]} & {*runs}]
    sheet = Sheet()
    for i, verdict in enumerate(LOOKS):
        _draw_box(sheet, MARGIN + i * WIDTH, verdict, verdict)
    sheet.y += BOX + 8
    per_line = int((POINTS - 2 * MARGIN) / WIDTH)
    for claim in claim_list:
        label = elide(claim.get("short", claim["id"].replace("-", " ")), int((POINTS - WIDTH) / LETTER / SMALL))
        sheet.text(MARGIN, sheet.y + 11, label, size=SMALL)
        measured = [run for run in runs if verdicts[claim["id"], run] in LOOKS]
        beside = int((POINTS - 2 * MARGIN - LETTER * SMALL * len(label)) / WIDTH)
        lines = [measured[:beside]]
        lines += [measured[i : i + per_line] for i in range(beside, len(measured), per_line)]
        for line in lines:
            left = POINTS - MARGIN - WIDTH * len(line)
            for i, run in enumerate(line):
                _draw_box(sheet, left + i * WIDTH, RUNS.get(run, run), verdicts[claim["id"], run])
            sheet.y += BOX + 2
    measured = verdicts[verdicts.isin(list(LOOKS))]
    counts = {run: rows.value_counts() for run, rows in measured.groupby(level="run", sort=False)}
    said = "; ".join(
        f"{RUNS.get(run, run)}: " + ", ".join(f"{count} {verdict}" for verdict, count in found.items())
        for run, found in counts.items()
    )
    return Drawing(sheet.finish(), {"claims": pluralize(len(claim_list), "claim"), "verdicts": said})


def _draw_box(sheet, x, word, verdict):
    """A box in the colour of a verdict, with its sign and a word."""
    fill, ink, sign = LOOKS[verdict]
    sheet.box(x, sheet.y, WIDTH - 2, BOX, facecolor=fill, edgecolor="none")
    sheet.text(x + WIDTH / 2 - 1, sheet.y + 10.5, f"{sign} {word}", ha="center", size=SMALL, color=ink)
