"""The paper: escaped, sourced, complete, and saying what the numbers say."""

import base64
import functools
import hashlib
import json
import re
import subprocess
from html import unescape
from html.parser import HTMLParser
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_fixtures import FIGURES, HOSTILE, ROOT, make, render, write_post

from reversal.common.errors import UserError
from reversal.common.files import sha256
from reversal.paper import bibliography, explorer, findings, markdown, phrases, provenance, write


class Reader(HTMLParser):
    """The elements and the text of a page."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    given = make(folder)
    return SimpleNamespace(given=given, **vars(render(given, folder / "out")))


@pytest.fixture(scope="module")
def html(made):
    return made.page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def post(made):
    return made.post.read_text(encoding="utf-8")


def squeezed(text):
    return re.sub(r"\s+", " ", text)


@settings(deadline=None, max_examples=200)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn"])))
def test_text_of_data_is_text_in_markdown_and_html(value):
    rendered = Reader(markdown.parser().renderInline(str(phrases.text("x" + value + "x"))))
    assert {tag for tag, _ in rendered.elements} <= {"span"}
    assert squeezed(rendered.text) == squeezed("x" + value + "x")


@given(st.text(min_size=1))
def test_liquid_finds_nothing_in_text_of_data(value):
    assert "{" not in phrases.text(value) and "{" not in phrases.attribute(value)


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_within_a_script_can_not_end_it_and_stays_what_it_is(value):
    coded = explorer.embedded(value)
    assert "<" not in coded and json.loads(coded) == value


@given(st.floats(0, 1), st.integers(0, 2))
def test_a_share_looks_like_none_or_all_only_where_it_is(share, digits):
    shown = str(phrases.percent(share, digits))
    assert (shown == f"{0:.{digits}f}%") <= (share == 0)
    assert (shown == f"{100:.{digits}f}%") <= (share == 1)


@pytest.mark.parametrize("value", [0.25, None, True, {}.clear, {}])
def test_what_is_not_rounded_or_not_there_can_not_be_printed(value):
    with pytest.raises(TypeError):
        phrases.printed(value)


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1)), min_size=1))
def test_over_seeds_a_verdict_holds_for_each_of_them(seeds):
    columns = pd.DataFrame([(mean, mean - below, mean + above) for mean, below, above in seeds])
    found = findings.judged(findings.over_seeds(columns[0], columns[1], columns[2]))
    alone = {findings.verdict(low, high) for _, low, high in columns.itertuples(index=False)}
    assert found["verdict"] == "unclear" or alone == {found["verdict"]}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"diffusion": 0.9, "autoregressive": 0.0},
            "recalls clearly more of the names and descriptions than the autoregressive model",
        ),
        ({"diffusion": 0.0, "autoregressive": 0.9}, "recalls clearly fewer of the names and descriptions than"),
        (
            {"diffusion": 0.5, "autoregressive": 0.5},
            "recalls neither clearly more nor clearly fewer of the names and descriptions",
        ),
        (
            {"answered": False},
            "taught the same sentences. That says little of the MDM, which has hardly learnt what it was taught: asked "
            "as taught, it recalls 0% of the names and 0% of the descriptions. That says little of the AR",
        ),
        ({"models": ["mdm"]}, "There is no model of the other family"),
        ({"models": ["ar"]}, "There is no model of the other family"),
        ({"source": "berglund"}, "recalls clearly more of the names and descriptions than the autoregressive model"),
    ],
)
def test_the_sentences_follow_the_numbers(tmp_path, options, says):
    given = make(tmp_path, names=["Ann Ash", "Bob Beech", "Cy Cedar"], **options)
    text = unescape(write_post(given, tmp_path / "out").post.read_text(encoding="utf-8"))
    opening = text.split("## Abstract")[0]
    assert says in opening
    assert ("No question could be traced" in opening) == (options.get("answered") is False)
    assert not re.search(r"\bnan\b|None|Undefined|\{#-|\}\}\}", text)
    prose = text.split("---\n", 2)[2].replace("tl;dr", "")
    assert not re.search(r" [.,;]|\.\.|;[a-z]", prose)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A function of ((table, what changes it), …): the post about it, written once."""

    @functools.cache
    def write(changes):
        folder = tmp_path_factory.mktemp("changed")
        given = make(folder, names=["Ann Ash", "Bob Beech", "Cy Cedar"], change=dict(changes))
        return unescape(write_post(given, folder / "out").post.read_text(encoding="utf-8"))

    return write


TRACED = ("causal_trace", "traced_facts", "trace_maps", "time")


def without(query):
    return lambda table: table.drop(table.query(query).index)


def shared_memory(rewriting):
    share = rewriting.transfer.where(rewriting.asked != "other", 0.8)
    return rewriting.assign(transfer=share, transfer_low=share - 0.1, transfer_high=share + 0.1)


def disturbing(rewriting):
    """Lessons whose other direction loses its old answer and does not gain the new one."""
    share = rewriting.answer.map({"old": 0.3, "new": -0.3}).where(rewriting.asked == "other", rewriting.transfer)
    return rewriting.assign(transfer=share, transfer_low=share - 0.1, transfer_high=share + 0.1)


def of_groups(*groups, protected=None):
    """Lessons to people of further groups; those to control people reach the other direction to `protected`."""

    def change(rewriting):
        further = [rewriting.assign(group=group) for group in groups]
        if protected is not None:
            share = rewriting.transfer.where(rewriting.asked != "other", protected)
            shares = {"transfer": share, "transfer_low": share - 0.03, "transfer_high": share + 0.03}
            further.append(rewriting.assign(group="p2d_control", **shares))
        return pd.concat([rewriting, *further])

    return change


def untaken(edits):
    taken = (edits.measure == "efficacy") & (edits.when == "after")
    return edits.assign(value=edits.value.where(~taken, 0.2))


def unfound(edits):
    edits = untaken(edits)
    return edits.assign(value=edits.value.where(edits.measure != "value", 0.2))


SHARES = {"partly": (0.3, 0.25, 0.35), "one": (0.95, 0.9, 1.0)}  # of the ceiling


def telling(verdict, *kinds):
    """Evidence that says `verdict`, all of it or that of some kinds."""

    def change(evidence):
        chosen = evidence.kind.isin(kinds or evidence.kind.unique())
        if verdict == "blind":
            return evidence.assign(ceiling_low=evidence.ceiling_low.where(~chosen, -0.1))
        for name, share in zip(("value", "ci_low", "ci_high"), SHARES[verdict], strict=True):
            evidence.loc[chosen, name] = share * evidence.ceiling
        return evidence

    return change


def disagreeing(evidence):
    """A lesson about a name reaches the other direction, and one about a description does not."""
    chosen = (evidence.kind == "rewriting") & (evidence.what == "d2p")
    return pd.concat([evidence[~chosen], telling("one", "rewriting")(evidence[chosen].copy())])


def faint(symmetry):
    return symmetry.assign(ci_low=-0.1)


def ended(step):
    return lambda searches: searches.assign(steps=step)


@pytest.mark.parametrize(
    ("change", "says", "never"),
    [
        (
            dict.fromkeys(TRACED, without("split.str.endswith('reverse')")),
            "people a test were traced: 18 answers of the MDM",
            "maps of the two questions to the same people",
        ),
        (
            dict.fromkeys(TRACED, without("model == 'mdm'")),
            "people a test were traced: 0 answers of the MDM",
            "No answer of the MDM was traced",
        ),
        (
            {"time": without("reading == 'each'")},
            "No answer of the MDM was traced at more than one step",
            "comes to cost",
        ),
        (
            {"keyvalue": without("layer >= 0")},
            "No values were sought; the figures show what was read",
            "The likeness of a concept",
        ),
        (
            {"symmetry": without("layer == 'peak'")},
            "debiased CKA 0.60 [0.55, 0.65] of at most 0.90",
            "Too few facts have",
        ),
        (
            {"symmetry": without("comparison.str.contains('value') and not comparison.str.startswith('within')")},
            "Too few facts have ",
            "beyond chance for",
        ),
        (
            {"edits": untaken},
            "Why do edits fail there? Of what hiding the subject costs",
            "two entries can be set side by side",
        ),
        ({}, "two entries can be set side by side", "Why do edits fail there?"),
        ({}, "a CKA of 0.15 would have been found four times in five among 20 facts of the MDM", "not even all of it"),
        ({}, "By the number of tokens of the new answer, 100% with 4 (n = 1) and 0% with 6 (n = 1) are told", "nan"),
        ({}, "does not reach the other. There are two entries.", "The evidence disagrees"),
        ({"evidence": disagreeing}, "The evidence disagrees: a new answer reaches", "There are two entries"),
        ({"evidence": telling("partly")}, "In part: the two directions share something", "There are two entries"),
        ({"evidence": telling("blind")}, "The evidence of this study cannot tell.", "There are two entries"),
        (
            {"evidence": telling("partly", "symmetry")},
            "two memories are seen by 3, something shared by 6; 0 cannot tell",
            "The evidence disagrees",
        ),
        (
            {"evidence": telling("partly", "symmetry")},
            "Most is in common for names by MLP output and value: 30% [",
            "It does disturb it",
        ),
        ({"rewriting": disturbing}, "It does disturb it: of what was taught, the old answer loses 30%", "two entries."),
        (
            {"edits": untaken},
            "the MLP at the last subject token alone does not change",
            "for 20% of the edits in layer 1",
        ),
        (
            {"rewriting": shared_memory, "evidence": telling("one", "rewriting")},
            "most of the new answer reaches the other direction: one memory in the MDM",
            "two memories in the",
        ),
        (
            {"rewriting": of_groups("p2d")},
            "Of 4 such tests, 4 say two memories in the MDM and 4 say two memories in the AR",
            "never had to predict, so",
        ),
        (
            {"rewriting": of_groups("p2d", protected=0.0)},
            "The MDM also has people whose name it never had to predict, so that it holds them in one direction alone. "
            "A lesson in that direction gives the other 0% [−5, 5] of what one memory would: as little as for those",
            "Of 6 such tests",
        ),
        (
            {"rewriting": of_groups(protected=0.6)},
            "of what one memory would: as much as one memory",
            "as little as for those",
        ),
        (
            {"rewriting": lambda rows: rows.assign(transfer=None, transfer_low=None, transfer_high=None)},
            "does not clearly find it likelier in other words than the lesson's, so that the reverse says nothing.",
            "– of that",
        ),
        ({"edits": unfound}, "for 20% of the edits in layer 1", "the MLP at the last subject token alone"),
        ({}, "of at most 0.90, p\xa0<\xa00.001, adjusted for both tests", "may show none"),
        (
            {"symmetry": faint},
            "alike beyond chance for names and descriptions, but so little that other facts may show none",
            "Too few facts have",
        ),
        ({}, "one fact holds 60% of the variance of the names", "corrected together"),
        (
            {"keyvalue": ended(20)},
            "away from that, at most 0.50; 100% were still improving at the last of 20 steps)",
            "at most 0.50)",
        ),
        ({"keyvalue": ended(19)}, "at most 0.50), without prefixes", "still improving at"),
        ({}, "Does the picture depend on how the subject is hidden?", "one person a test"),
        (
            {"trace_maps": without("statistic == 'plateau'"), "traced_facts": lambda rows: rows.assign(n=1)},
            "At most one person a test was traced: 4 answers of the MDM",
            "Does the picture depend on how the subject is hidden?",
        ),
    ],
)
def test_sentences_hold_where_part_of_the_evidence_is_missing(told, change, says, never):
    text = told(tuple(change.items()))
    assert says in text and never not in text
    prose = text.split("---\n", 2)[2].replace("tl;dr", "")
    assert not re.search(r"\bnan\b|None|Undefined| [.,;]|\.\.|;[a-z]|\*\* \n", prose)


def test_a_missing_number_stops_with_the_template_and_its_line(made, tmp_path):
    numbers = json.loads(made.numbers.read_text())
    del numbers["recall.most"]
    (tmp_path / "numbers.json").write_text(json.dumps(numbers))
    given = SimpleNamespace(**vars(made.given.shown) | {"numbers": str(tmp_path / "numbers.json")})
    params = made.given.shown_params
    params = params | {"makers": params["makers"] | {given.numbers: ["numbers", "workflow/scripts/render.py"]}}
    with pytest.raises(UserError, match=r"paper/sentences\.j2:\d+: .*most") as caught:
        write.page_file(given, str(tmp_path / "page.html"), root=ROOT, **params)
    line = int(re.search(r":(\d+):", str(caught.value))[1])
    assert "recall.most" in (ROOT / "paper/sentences.j2").read_text().splitlines()[line - 1]
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("change", ["too few", "too many"])
def test_figures_used_are_those_produced(made, tmp_path, change):
    shown = vars(made.given.shown)
    if change == "too few":
        figures = [path for path in shown["figures"] if "timeline" not in path]
        says = "figure timeline is used but not produced"
    else:
        (tmp_path / "stray.svg").write_text("<svg/>")
        figures = [*shown["figures"], str(tmp_path / "stray.svg")]
        says = "figure stray is produced but not used"
    params = made.given.shown_params
    params = params | {"makers": params["makers"] | {path: ["rule", "script"] for path in figures}}
    with pytest.raises(UserError, match=says):
        write.page_file(
            SimpleNamespace(**shown | {"figures": figures}), str(tmp_path / "page.html"), root=ROOT, **params
        )


def test_every_claim_leads_to_the_files_behind_it_and_their_hashes(made, html):
    table = html.split('id="table-questions"')[1].split("</table>")[0]
    folder = made.numbers.parents[1]
    rows = re.findall(r"<tr><th scope=\"row\">(.*?)</th><td>(.*?)</td><td>(.*?)</td></tr>", table)
    assert len(rows) >= 8 and [n for n in (1, 2) if any(f"Objective {n}:" in row[0] for row in rows)] == [1, 2]
    opening = html.split('<h2 id="tl-dr">')[1].split("<h2")[0]
    for question, answer, evidence in rows:
        files = re.findall(r'<a href="\.\./(\w+/([^"]*))">\2</a> <small>rule some_rule, (\w{12})</small>', evidence)
        assert files and all(sha256(folder / file).startswith(digits) for file, _, digits in files), question
        shown = re.findall(r'href="#(figure-[^"]*)"', evidence)
        assert all(f'id="{figure}"' in html for figure in shown), question
        assert shown or question.startswith("<strong>Why."), "only of a kept run is there a figure"
        assert answer in opening, "the opening and the table have one source"


@pytest.mark.parametrize("missing", ["tables/gradients.csv", "figures/one_memory.svg"])
def test_a_claim_whose_evidence_is_missing_stops_the_post(made, tmp_path, missing):
    kind = missing.split("/")[0]
    kept = [path for path in vars(made.given.shown)[kind] if not path.endswith(missing)]
    given = SimpleNamespace(**vars(made.given.shown) | {kind: kept})
    says = (
        "figure one_memory is used but not"
        if kind == "figures"
        else f"One memory or two: the answer rests on {missing}"
    )
    with pytest.raises(UserError, match=says):
        write.page_file(given, str(tmp_path / "page.html"), root=ROOT, **made.given.shown_params)
    assert not (tmp_path / "page.html").exists()


def test_the_opening_tells_the_finding_and_shows_it(html):
    first = html.split("<h2")[0].split('<main id="start">')[1]
    assert "a masked diffusion model recalls 90% of the names" in first and 'id="figure-finding"' in first


def test_what_it_cost_is_told_with_its_assumptions(post):
    told = post.split("## Appendix: what it cost")[1].split("\n## ")[0]
    assert "The 3 jobs behind this text took 4.5 minutes" in told and "80 s of GPUs" in told
    assert "a busy core takes 10 W and a GPU 700 W, that is some 16 Wh: an estimate" in told
    assert '<th scope="row">finetune</th><td>2</td><td>3.0 minutes</td><td>2.0 minutes</td><td>80 s</td>' in told


def test_citations_and_references_agree_both_ways(made):
    entries = bibliography.read(ROOT / "paper/references.bib")
    with pytest.raises(UserError, match="has no entry nobody2020"):
        bibliography.check([*entries, "nobody2020"], entries, "references.bib")
    with pytest.raises(UserError, match="nothing cites austin2021structured"):
        bibliography.check([key for key in entries if key != "austin2021structured"], entries, "references.bib")


def test_the_post_drops_into_an_al_folio_site(made, post):
    _, front, body = post.split("---\n", 2)
    front = yaml.safe_load(front)
    assert front["layout"] == "distill" and str(front["date"]) == "2025-07-14"
    assert front["bibliography"] == "2025-07-14-a-post.bib"
    listed = [(entry["name"], [sub["name"] for sub in entry.get("subsections", [])]) for entry in front["toc"]]
    headings = re.findall(r"^(##+) (.*) \{#(.*)\}$", body, re.M)
    assert [name for level, name, _ in headings if level == "##"] == [name for name, _ in listed]
    assert all(anchor == markdown.slug(name) for _, name, anchor in headings)
    entries = bibliography.read(ROOT / "paper/references.bib")
    cited = [key for keys in re.findall(r'<d-cite key="([^"]*)">', body) for key in keys.split(",")]
    assert set(cited) == set(entries)
    images = re.findall(r"src=\"\{\{ '/assets/img/a-post/([^']*)' \| relative_url \}\}\"", body)
    assert sorted(images) == sorted(f"{name}.svg" for name in FIGURES)
    assert all((made.images / image).stat().st_size for image in images)
    linked = re.findall(r"href=\"\{\{ '/assets/(img|csv)/a-post/([^']*)' \| relative_url \}\}\"", body)
    assert linked and all(({"img": made.images, "csv": made.tables}[kind] / file).is_file() for kind, file in linked)
    # What is left of Liquid is ours.
    assert body.count("{{") == len(images) + len(linked) and "{%" not in body


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_text_wherever_it_stands(tmp_path, name):
    done = render(make(tmp_path, names=[name, "B", "C"]), tmp_path / "out")
    html, post = (path.read_text(encoding="utf-8") for path in (done.page, done.post))
    page = Reader(html)
    assert squeezed(name) in squeezed(page.text)
    assert name not in post and len(page.all("script")) == 2
    shown = Reader(markdown.parser(markdown.mathjax).render(post))
    assert squeezed(name) in squeezed(shown.text) and not shown.all("script")


def test_the_page_has_its_own_scripts_only_and_asks_for_nothing(html):
    page = Reader(html)
    assert [script.get("type") for script in page.all("script")] == ["application/json", None]
    script = re.search(r"<script>(.*?)</script>", html, re.S)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    [policy] = [meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in policy and f"'sha256-{digest}'" in policy
    assert all(image["src"].startswith("data:image/svg+xml;base64,") for image in page.all("img"))
    assert all(link["href"].startswith("data:") for link in page.all("link"))
    assert "@import" not in html and "url(" not in html.split("</style>")[0]


def test_every_link_within_the_page_leads_somewhere(html):
    page = Reader(html)
    places = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(places) == len(set(places))
    inside = {link["href"][1:] for link in page.all("a") if link["href"].startswith("#")}
    assert inside <= set(places)


def test_figures_tables_and_formulas_are_whole(html):
    page = Reader(html)
    blocks = re.findall(r"<figure .*?</figure>", html, re.S)
    assert len(blocks) == len(page.all("img")) + len(page.all("table"))
    for block in blocks:
        if 'id="table-questions"' in block:
            continue  # leads to many files, each with its rule
        assert re.search(r'class="made">rule \w+ \(workflow/scripts/\w+\.py\) · study made-up · ', block)
        assert re.search(r"<figcaption><strong>(Figure|Table) [1-9]\d*\.</strong> \S", block)
    assert all(image["alt"] for image in page.all("img"))
    assert len(page.all("math")) > 20 and not re.search(r"<m[ion]>[^<]*\\", html) and "$$" not in html


def test_a_formula_that_would_not_be_readable_stops_the_build():
    with pytest.raises(UserError, match="formula"):
        markdown.mathml(r"\unknown{x}", display=False)


def test_both_conventions_have_the_same_numbers_for_each_test_file(html):
    def columns(name):
        block = html.split(f'id="table-{name}"')[1].split("</table>")[0]
        files = [re.sub("<wbr>", "", file) for file in re.findall(r"<code>(.*?)</code>", block)]
        rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", block.split("<tbody>")[1])]
        return dict(zip(files, zip(*rows, strict=True), strict=True))

    assert columns("recall") == columns("recall-by-question") and len(columns("recall")) == 4


def test_published_values_stand_beside_ours_where_the_data_are_the_published_ones(tmp_path):
    given = make(tmp_path, source="berglund")
    given.sources.published = str(tmp_path / "published.csv")
    (tmp_path / "published.csv").write_text("steps,d2p_same,d2p_reverse,p2d_same,p2d_reverse\n4,91.3,0,2.5,40.25\n")
    text = write_post(given, tmp_path / "out").post.read_text(encoding="utf-8")
    table = text.split('id="table-recall"')[1].split("</table>")[0]
    rows = re.findall(r"<tr><th scope=\"row\">(.*?)</th>(.*?)</tr>", table)
    beside = {name: re.findall("<td>(.*?)</td>", cells)[::2] for name, cells in rows}
    assert beside == {
        "MDM, 1": ["–"] * 4,
        "MDM, 4": ["91.3", "0.0", "2.5", "40.2"],
        "AR, token by token": ["–"] * 4,
    }


def test_cut_tokens_and_adapters_are_told_where_there_were_any(tmp_path, post):
    given = make(tmp_path, kept=["seeds"])
    given.config["training"]["adapter"] = {"rank": 32, "alpha": 64}
    given.config["training"]["subword_dropout"] = 0.1
    given.config["models"]["mdm"]["base"] = "pretrain"
    given.config["pretraining"]["recipe"]["subword_dropout"] = 0.15
    text = write_post(given, tmp_path / "out").post.read_text(encoding="utf-8")
    assert "subject and answer 10%, others each time, are spelt in smaller ones (in pretraining 15% of all" in text
    assert "are spelt in smaller ones" not in post
    assert "rank 32, α 64) beside the matrices of the blocks; they are merged" in text and "LoRA" not in post
    assert "With five seeds of networks of 1.7 million parameters" in text  # which do not start where these do


def test_a_run_kept_with_the_paper_is_told_beside_the_study_with_its_own_numbers(tmp_path):
    """The repository's own: its sentences, tables and figures must stand with numbers that an earlier commit made."""
    kept = ROOT / "paper/reference/published"
    text = write_post(make(tmp_path, kept=["published"]), tmp_path / "out").post.read_text(encoding="utf-8")
    section = text.split("### The published data, ")[1].split("## Conclusion")[0]
    numbers = json.loads((kept / "numbers.json").read_text(encoding="utf-8"))
    made = json.loads((kept / "provenance.json").read_text(encoding="utf-8"))
    assert f"commit {made['commit']}" in section and f"torch {made['versions']['torch']}" in section
    assert "model of that run (MDM)" in section and "model of this study" not in section
    reversed_names = numbers["recall"]["at"]["mdm"]["p2d_reverse"]["estimate"]
    assert f"90% of the names asked in reverse (here {100 * reversed_names:.0f}%)" in section
    last = numbers["recall"]["curve"]["mdm"]["d2p_same"]["32"]
    [row] = re.findall(r"<tr><th scope=\"row\">MDM, 32</th>(.*?)</tr>", section)
    assert row.startswith(f"<td>97.7</td><td>{100 * last['estimate']:.1f}%")
    assert 'id="figure-published-step-scaling"' in section
    assert re.search("With the published data .* and networks of 38 million parameters, the MDM", text)
    assert not re.search(r"\.- \*|\w\. \*\*[A-Z]", section + text.split("## Limitations")[1]), "paragraphs run together"
    assert made["caveat"] in section and "study made-up" not in section
    assert "Where tracing points" not in section and 'id="figure-published-memories"' in section


def test_a_run_with_several_seeds_is_told_as_the_same_networks_over_again(tmp_path):
    text = write_post(make(tmp_path, kept=["seeds"]), tmp_path / "out").post.read_text(encoding="utf-8")
    section = text.split("### The same design with five seeds and 110 people")[1].split("## Conclusion")[0]
    assert "Lessons of other kinds were given, too" in section and 'id="figure-seeds-memories"' in section
    assert "Between seeds of the MDM, maps correlate at" in section and "With five seeds of these networks" in text
    assert not re.search(r"\bnan\b|None|Undefined", section)


def test_every_number_names_a_source(made):
    numbers = json.loads(made.numbers.read_text())
    folder = made.numbers.parents[1]
    for name, leaf in numbers.items():
        assert leaf.keys() == {"value", "source"} and leaf["source"], name
    used = {file for leaf in numbers.values() for file in leaf["source"]} - {"config.yaml", "paper/reference"}
    assert all((folder / file).exists() or (ROOT / file).exists() for file in used)


def test_the_same_results_give_the_same_bytes(made, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    pages = [render(made.given, tmp_path / name).page.read_bytes() for name in ("one", "two")]
    assert pages[0] == pages[1] and b"2023-11-14 22:13 UTC" in pages[0]


def test_the_explorer_stays_within_its_size(made):
    data = json.loads((made.numbers.parent / "explorer.json").read_text())
    assert data["traced"] and {case["model"] for case in data["cases"]} == {"mdm", "ar"}
    families = made.given.explorer_params["models"]
    rows = [{"fact": "f", "split": "p2d_same", "prompt": "p" * 500, "reference": " r", "generation": " r"}] * 8
    rows = [
        row | {"fact": f"f{i}", "steps": 1, "correct": True, "revealed": [[1, " r", 0, 1.0]]}
        for i, row in enumerate(rows)
    ]
    people = {row["fact"]: row["fact"] for row in rows}
    whole = explorer.build(families, people, {"mdm": rows}, {}, {}, steps=1, max_facts=8)
    small = explorer.within(whole, 3000)
    assert len(whole["cases"]) == 8
    assert len(explorer.embedded(small).encode()) <= 3000 and 0 < len(small["cases"]) < 8


def test_the_commit_is_unknown_outside_a_repository(tmp_path):
    assert provenance.commit(tmp_path) == "unknown"
    (tmp_path / "inner").mkdir()
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert provenance.commit(tmp_path / "inner") == "unknown"


def test_the_fingerprint_tells_configurations_apart():
    assert provenance.fingerprint({"a": 1, "b": 2}) == provenance.fingerprint({"b": 2, "a": 1})
    assert provenance.fingerprint({"a": 1}) != provenance.fingerprint({"a": 2})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1_681_536, "1.7 million"),
        (37_899_776, "38 million"),
        (1_142_367_744, "1.1 billion"),
        (999_600_000, "1.0 billion"),
    ],
)
def test_sizes_are_told_roughly_in_words(value, words):
    assert phrases.rounded(value) == words


def test_rows_and_models_of_one_s_own_are_not_told_as_another_s(tmp_path):
    given = make(tmp_path, source="rows")
    given.config["data"]["rows"]["train"] = "my/train.jsonl"
    given.config["models"]["ar"]["folder"] = "my/gpt2"
    (tmp_path / "models/ar/base/checksums.json").write_text(json.dumps({"model.safetensors": "0" * 64}))
    text = write_post(given, tmp_path / "out").post.read_text(encoding="utf-8")
    assert "The set of this study is your own, from my&#47;train.jsonl." in text
    assert "test questions; some in words that training shows too." in text
    assert "it starts from a model of your own, from my&#47;gpt2." in text
    assert "it starts from a tiny base that ships with the project" in text  # the other model's weights do ship
    assert "The set is theirs" not in text and "those of Berglund et al." not in text and "fictitious" not in text


def test_the_post_tells_what_lifts_the_curse_from_its_own_control_and_from_kept_runs(tmp_path):
    made = write_post(make(tmp_path / "study", taught=["objectives", "epochs"]), tmp_path / "out")
    text = made.post.read_text()
    assert "What lifts the curse is that the subject is predicted, too." in text
    assert "ways of training, with three seeds each" in text and "More passes over the same rows do not replace" in text
    assert "Size alone does not do it" in text and "Told the time" in text
    unclear = {"objectives": lambda rows: rows.assign(ci_low=0.0, ci_high=1.0)}
    made = write_post(make(tmp_path / "vague", change=unclear), tmp_path / "out")
    text = made.post.read_text()
    assert "is not clear from the control within this network" in text and "ways of training, with" not in text
    nobody = {"objectives": lambda rows: rows[~rows.protected]}
    text = write_post(make(tmp_path / "plain", change=nobody), tmp_path / "out").post.read_text()
    assert "What lifts the curse" not in text
