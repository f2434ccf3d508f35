"""The paper: its text filled in, escaped, traced to its sources, complete; and reports of other studies."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_fixtures import HOSTILE, PAPER, ROOT, RUNS, article_figures, make, render

from docs import prose, readme
from reversal.common.errors import UserError
from reversal.figures.registry import FIGURES
from reversal.paper import bibliography, explorer, markdown, post, provenance, write


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
    study = make(folder)
    return SimpleNamespace(given=study, **vars(render(study, folder / "out")))


@pytest.fixture(scope="module")
def html(made):
    return made.page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def text(made):
    return made.post.read_text(encoding="utf-8")


def squeezed(value):
    return re.sub(r"\s+", " ", value)


@settings(deadline=None, max_examples=200)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn"])))
def test_text_of_data_is_text_in_markdown_and_html(value):
    rendered = Reader(markdown.parser().renderInline(str(markdown.text("x" + value + "x"))))
    assert {tag for tag, _ in rendered.elements} <= {"span"}
    assert squeezed(rendered.text) == squeezed("x" + value + "x")


@given(st.text(min_size=1))
def test_liquid_finds_nothing_in_text_of_data(value):
    assert "{" not in markdown.text(value) and "{" not in markdown.attribute(value)


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_within_a_script_can_not_end_it_and_stays_what_it_is(value):
    coded = explorer.embed(value)
    assert "<" not in coded and json.loads(coded) == value


def test_a_formula_that_would_not_be_readable_stops_the_build():
    with pytest.raises(UserError, match="formula"):
        markdown.mathml(r"\unknown{x}", display=False)


def test_every_number_tells_its_run_table_rows_and_rule(html):
    shown = re.findall(r'<span class="n" tabindex="0" title="([^"]*)">([^<]*)</span>', html)
    assert len(shown) > 60 and all(value.strip() for _, value in shown)
    sourced = re.compile(
        rf"run (this|{'|'.join(RUNS)}): (\w+)\.csv, .*, column \w+; (rule some_rule|not made by this study)"
    )
    assert all(sourced.search(unescape(title)) for title, _ in shown)
    (names,) = {
        value
        for title, value in shown
        if "run seeds: step_scaling.csv, model mdm, split p2d_reverse, steps max" in title
    }
    assert names == "97%"
    assert not re.search(r"\bnan\b|Undefined|: None", Reader(html.split("<main")[1].split("<script")[0]).text)


def test_a_claim_says_what_this_run_found_and_stands_out_only_where_it_fails(tmp_path, html):
    assert '<p class="claim holds" id="claim-names-reverse">' in html and 'class="claim fails"' not in html

    def forget(table):
        reverse = (table.model == "mdm") & (table.split == "p2d_reverse")
        return table.assign(
            **{column: table[column].mask(reverse, 0.1) for column in ("accuracy", "ci_low", "ci_high")}
        )

    change = {"step_scaling": forget, "time": lambda table: table[table.model == "ar"]}
    page = render(make(tmp_path, change=change), tmp_path / "out").page.read_text(encoding="utf-8")
    line = page.split('<p class="claim fails" id="claim-names-reverse">')[1].split("</p>")[0]
    assert "In this run: 10% &#91;10, 10&#93;: fails." in line
    unmeasured = page.split('<p class="claim not-measured" id="claim-subject-fades">')[1].split("</p>")[0]
    assert "Reference run seeds: " in unmeasured and ": holds." in unmeasured
    assert '<span class="verdict fails">10' in page.split('id="table-claims"')[1]


def test_a_claim_that_no_longer_holds_in_its_reference_run_stops_the_build_and_names_its_sentence(tmp_path):
    study = make(tmp_path / "study")
    for run in RUNS:
        shutil.copytree(PAPER / "reference" / run, tmp_path / run)
    table = pd.read_csv(tmp_path / "seeds/step_scaling.csv")
    reverse = (table.model == "mdm") & (table.split == "p2d_reverse")
    table.loc[reverse, ["accuracy", "ci_low", "ci_high"]] = [0.2, 0.1, 0.3]
    table.to_csv(tmp_path / "seeds/step_scaling.csv", index=False)
    study.reference = [str(tmp_path / "/".join(path.split("/")[-2:])) for path in study.reference]
    with pytest.raises(UserError, match="recalls most names") as caught:
        write.claims_file(study, study.verdicts, config=study.params["config"])
    assert "fails in run seeds: step_scaling.csv gives 20% [10, 30], needed above 50%" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{% if x %}never{% endif %}", r"article\.md:7: only expressions are allowed"),
        ("{{ no_such_number }}", r"article\.md:7: 'no_such_number' is undefined"),
        ('{{ claim("nobody") }}', r"article\.md:7: paper/claims.yaml has no claim nobody"),
        ('{{ figure("nobody") }}', r"article\.md:7: figure nobody is used but not made"),
        ('{{ figure("claims") }} {{ figure("claims") }}', r"article\.md:7: figure claims is used twice"),
        ('{{ see("nobody") }}', r"the text points at nobody"),
        ('{{ cite("nobody2020") }}', r"article\.md:7: paper/references.bib has no entry nobody2020"),
        ('{{ table("nobody", "x") }}', r"article\.md:7: table nobody of run this is used but not made"),
        ("{{ cite }}", r"article\.md:7: .* is no number of numbers.yaml"),
        ("{{ open", r"article\.md:7: unexpected end of template|article\.md:\d+: "),
        ("", r"paper/numbers\.yaml: no text uses mdm_names_reverse"),
    ],
)
def test_a_slip_in_the_text_stops_with_file_and_line(tmp_path, made, line, says):
    article = tmp_path / "article.md"
    article.write_text(f"---\ntitle: A\nsubtitle: B\n---\n\n## C\n{line}\n")
    given = SimpleNamespace(**vars(made.given) | {"sources": [str(article)]})
    with pytest.raises(UserError, match=says):
        write.post_files(given, None, root=ROOT, **given.params)


def test_the_article_reads(text):
    found = prose.measure(text)
    assert 3500 <= found["words"] <= 5000 and found["figures"] <= 12
    assert found["share of sentences over 35 words"] < 0.05, found["longest sentence"]
    assert found["numbers per 100 words"] <= 3


def test_numbers_of_the_readme_are_those_of_the_reference_runs():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.fill_numbers(text) == text


def test_a_table_has_the_chosen_columns_and_pools_seeds(html):
    table = html.split('id="table-seeds-step-scaling"')[1].split("</table>")[0]
    assert re.findall('<th scope="col">(.*?)</th>', table) == ["Model", "Test file", "Steps", "Recall"]
    rows = re.findall('<tr><th scope="row">(.*?)</th><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td></tr>', table)
    assert len(rows) == len({row[:3] for row in rows}) > 20
    assert unescape(
        dict((row[:3], row[3]) for row in rows)["mdm", "p2d&#95;reverse&#95;prompts&#95;test", "32"]
    ).startswith("97% [")


def test_the_post_drops_into_an_al_folio_site(made, text):
    _, front, body = text.split("---\n", 2)
    front = yaml.safe_load(front)
    article = post.read_source(PAPER / "article.md").front
    assert front["layout"] == "distill" and str(front["date"]) == "2025-07-14" and front["title"] == article["title"]
    assert front["bibliography"] == "2025-07-14-a-post.bib"
    headings = re.findall(r"^(##+) (.*) \{#(.*)\}$", body, re.M)
    assert [name for level, name, _ in headings if level == "##"] == [entry["name"] for entry in front["toc"]]
    assert all(anchor == markdown.slug(name) for _, name, anchor in headings)
    appendices = [entry["name"] for entry in front["toc"][-1]["subsections"]]
    folded = re.findall(r'<details markdown="1" id="(.*)">\n<summary>(.*)</summary>', body)
    assert [markdown.slug(name) for name in appendices] == [anchor for anchor, _ in folded] and len(folded) > 5
    cited = [key for keys in re.findall(r'<d-cite key="([^"]*)">', body) for key in keys.split(",")]
    assert set(cited) == set(bibliography.read(PAPER / "references.bib"))
    images = re.findall(r"src=\"\{\{ '/assets/img/a-post/([^']*)' \| relative_url \}\}\"", body)
    assert sorted(images) == sorted(f"{name}.svg" for name in article_figures())
    linked = re.findall(r"href=\"\{\{ '/assets/(img|csv)/a-post/([^']*)' \| relative_url \}\}\"", body)
    assert linked and all(({"img": made.images, "csv": made.tables}[kind] / file).is_file() for kind, file in linked)
    # What is left of Liquid is ours.
    assert body.count("{{") == len(images) + len(linked) and "{%" not in body


def test_the_page_has_its_own_scripts_only_and_asks_for_nothing(html):
    page = Reader(html)
    assert [script.get("type") for script in page.all("script")] == ["text/plain", None]
    script = re.search(r"<script>(.*?)</script>", html, re.S)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    [policy] = [meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in policy and f"'sha256-{digest}'" in policy
    assert all(image["src"].startswith("data:image/svg+xml,") for image in page.all("img"))
    assert all(link["href"].startswith("data:") for link in page.all("link"))
    assert "@import" not in html and "url(" not in html.split("</style>")[0]


def test_every_link_within_the_page_leads_somewhere(html):
    page = Reader(html)
    places = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(places) == len(set(places))
    inside = {link["href"][1:] for link in page.all("a") if link["href"].startswith("#")}
    assert inside <= set(places)


def test_figures_and_tables_have_a_caption_and_a_source(html):
    page = Reader(html)
    blocks = re.findall(r"<figure .*?</figure>", html, re.S)
    assert len(blocks) == len(page.all("img")) + len(page.all("table"))
    for block in blocks:
        source = re.search(r'<details class="source"><summary>source</summary>(.*)</details>', block)[1]
        assert re.search(
            r"rule some_rule \(workflow/scripts/some\.py\) · study made-up · |reference run \w+ · ", source
        )
        assert re.search(r"<figcaption><strong>(Figure|Table) [1-9]\d*\.</strong> \S", block)
    assert all(image["alt"] for image in page.all("img"))
    assert len(page.all("math")) > 10 and "$$" not in html


@pytest.mark.parametrize(("source", "author"), [("rows", "Erika Muster"), ("berglund", "")])
def test_a_study_of_other_data_gets_a_report_without_a_narrative(tmp_path, source, author):
    given = make(tmp_path, source=source, models=["mdm"])
    config = given.params["config"]
    config["data"]["rows"] |= {"train": "my/train.jsonl", "tests": "my/tests.jsonl"}
    config["paper"] = config["paper"] | {"author": author}
    made = render(given, tmp_path / "out")
    html, text = (path.read_text(encoding="utf-8") for path in (made.page, made.post))
    assert "<h1>Report of the study made-up</h1>" in html and "Gideon Wilde" not in text and "d-cite" not in text
    assert 'id="figure-step-scaling"' in html and FIGURES["step_scaling"].caption[:40] in html
    table = html.split('id="table-claims"')[1].split("</table>")[0]
    assert "recalls most names" in table and "100 epochs" not in table
    assert all(name in Reader(html).text for name in ("Appendix: table Recall", "Appendix: configuration"))
    people = {"rows": "the rows in my/train.jsonl and my/tests.jsonl", "berglund": "the people of Berglund et al."}
    assert people[source] in Reader(html).text
    assert ('class="byline"' in html) == ("affiliations:" in text) == ('name="author"' in html) == bool(author)


def test_a_name_is_text_wherever_it_stands(html, text):
    assert len(Reader(html).all("script")) == 2 and not any(name in text for name in HOSTILE)
    data = re.search(r'id="explorer-data">(.*?)</script>', html, re.S)[1]
    assert {case["name"] for case in json.loads(data)["cases"]} == {*HOSTILE}


def test_the_same_results_give_the_same_bytes(made, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    pages = [render(made.given, tmp_path / name).page.read_bytes() for name in ("one", "two")]
    assert pages[0] == pages[1] and b"2023-11-14 22:13 UTC" in pages[0]


def test_the_explorer_begins_with_reverse_questions_and_traced_people(made):
    with open(made.given.explorer, encoding="utf-8") as file:
        whole = json.load(file)
    assert next(iter(whole["splits"])) == "p2d_reverse" and {case["model"] for case in whole["cases"]} == {"mdm", "ar"}
    assert "trace" in whole["cases"][0]


def test_the_commit_is_unknown_outside_a_repository(tmp_path):
    assert provenance.commit(tmp_path) == "unknown"
    (tmp_path / "inner").mkdir()
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert provenance.commit(tmp_path / "inner") == "unknown"
