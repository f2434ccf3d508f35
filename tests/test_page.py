"""The page and Snakemake's report in a real browser: quiet, whole, alive, and no wider than the screen."""

import re
import time

import pytest
from browser_fixtures import WIDTHS, assert_fits, assert_quiet, visit, wait_until
from paper_fixtures import make, render
from study_fixtures import copy_study, run_smoke_study, snakemake

from reversal.figures.registry import SECTIONS
from reversal.paper.post import find_figure


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    return render(make(folder), folder / "out").page


def part(name):
    return f'#explorer-tool [data-part="{name}"]'


def read(browser, name, attribute):
    """An attribute of a part of the explorer."""
    return browser.execute_script("return document.querySelector(arguments[0])[arguments[1]]", part(name), attribute)


def choose(browser, name, value):
    """Set a control of the explorer as a reader would, and let it react."""
    script = """
        const control = document.querySelector(arguments[0]);
        control.value = arguments[1];
        control.dispatchEvent(new Event(arguments[2], { bubbles: true }));"""
    browser.execute_script(script, part(name), str(value), "input" if name == "step" else "change")


def picture(browser):
    """What the explorer shows: the canvas and the heat map."""
    return [read(browser, name, "innerHTML") for name in ("canvas", "trace")]


def options(browser, name):
    script = "return Array.from(document.querySelector(arguments[0]).options, (one) => [one.value, one.textContent])"
    return browser.execute_script(script, part(name))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_is_quiet_whole_and_fits(browser, page, width, scheme):
    visit(browser, page, width=width, scheme=scheme)
    time.sleep(0.3)
    assert_quiet(browser, page)
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) > 384) == (scheme == "light")
    title, subtitle, image = browser.execute_script(
        """return ["h1", ".subtitle", "main img"].map((one) =>
            document.querySelector(one).getBoundingClientRect().bottom)"""
    )
    assert title < subtitle < image <= 900  # all on the first screen
    assert_fits(browser, "main")
    sizes = browser.execute_script(
        """return Array.from(document.querySelectorAll("figure img, math, table"), (one) => {
            const box = one.getBoundingClientRect();
            return [one.tagName, box.width, box.height, one.naturalWidth];
        })"""
    )
    assert {"IMG", "math", "TABLE"} <= {tag for tag, *_ in sizes}
    assert all(wide > 0 and high > 0 and natural != 0 for _, wide, high, natural in sizes)


def test_appendices_are_closed_and_a_link_into_one_opens_it(browser, page):
    visit(browser, page)
    opened = "return Array.from(document.querySelectorAll('.appendix'), (one) => one.open)"
    assert not any(browser.execute_script(opened))
    browser.execute_script("location.hash = document.querySelectorAll('.appendix')[1].querySelector('figure').id")
    wait_until(lambda: browser.execute_script(opened).count(True) == 1)


def test_numbers_figures_and_citations_tell_their_source(browser, page):
    visit(browser, page)
    tip = browser.find_element("id", "tip")
    for target, says in {"p .n": ("step_scaling.csv", "rule some_rule"), ".cite a": ("Berglund",)}.items():
        browser.execute_script("document.querySelector(arguments[0]).focus()", target)
        assert tip.is_displayed() and all(word in tip.text for word in says)
    source = browser.find_element("css selector", "figure .source")
    assert source.get_attribute("open") is None
    browser.execute_script("arguments[0].firstElementChild.click()", source)
    assert source.get_attribute("open") and "rule some_rule (workflow/scripts/some.py)" in source.text


@pytest.mark.parametrize("width", WIDTHS)
def test_the_contents_follow_the_reader(browser, page, width):
    visit(browser, page, width=width)
    marked = """return Array.from(document.querySelectorAll("nav [aria-current]"), (link) => link.textContent)"""
    assert browser.execute_script(marked) == []
    for anchor in ("the-experiment", "where-the-fact-travels"):
        script = """const heading = document.getElementById(arguments[0]);
            heading.scrollIntoView({ behavior: "instant" });
            return heading.textContent"""
        name = browser.execute_script(script, anchor)
        wait_until(lambda name=name: browser.execute_script(marked) == [name])
        top, bottom = browser.execute_script(
            "const box = document.querySelector('nav').getBoundingClientRect(); return [box.top, box.bottom]"
        )
        assert 0 <= top < bottom <= 900
    assert browser.execute_script("return document.querySelector('nav details').open") == (width > 500)


def test_the_explorer_shows_what_is_chosen_and_names_stay_text(browser, page):
    visit(browser, page)
    assert any("<script>alert(1)</script>" in name for _, name in options(browser, "fact"))
    assert len(browser.find_elements("css selector", "script")) == 2
    before = picture(browser)
    assert "<svg" in before[1]
    for control in ("fact", "split", "model"):
        for value, _ in options(browser, control)[1:]:
            choose(browser, control, value)
            after = picture(browser)
            assert after != before
            before = after


def test_the_explorer_opens_on_a_reverse_question_at_t1_and_plays_by_itself(browser, page):
    visit(browser, page)
    assert read(browser, "split", "value") == "p2d_reverse"
    first = read(browser, "step", "value")
    assert first == "0"  # the made-up answers begin at the first step
    scroll = "document.getElementById('explorer-tool').scrollIntoView({ behavior: 'instant' })"
    browser.execute_script(scroll)
    time.sleep(3)
    assert read(browser, "step", "value") == first, "no motion was wanted"
    visit(browser, page, motion=True)
    browser.execute_script(scroll)
    wait_until(lambda: read(browser, "step", "value") != first)
    play = browser.find_element("css selector", part("play"))
    assert play.text == "Pause"
    browser.execute_script("arguments[0].click()", play)
    paused = read(browser, "step", "value")
    time.sleep(1.5)
    assert play.text == "Play" and read(browser, "step", "value") == paused


def test_cells_of_the_explorer_tell_shares_and_nats(browser, page):
    visit(browser, page)
    cells = "return Array.from(document.querySelectorAll(arguments[0] + ' rect title'), (one) => one.textContent)"
    found = [re.search(r": (-?\d+)%, (-?[\d.]+) nats", cell) for cell in browser.execute_script(cells, part("trace"))]
    assert found and all(int(one[1]) == pytest.approx(100 * float(one[2]) / 20, abs=1) for one in found)
    assert "costs the rest of the answer 20.0 nats" in read(browser, "trace-said", "textContent")


def test_the_explorer_unmasks_step_by_step_also_from_the_keyboard(browser, page):
    from selenium.webdriver.common.keys import Keys

    visit(browser, page)
    pictures = []
    for step in range(int(read(browser, "step", "max")) + 1):
        choose(browser, "step", step)
        pictures.append(picture(browser))
    masked = [canvas.count('class="masked"') for canvas, _ in pictures]
    assert masked == sorted(masked, reverse=True) and masked[0] > 0 and masked[-1] == 0
    assert pictures[0] != pictures[1]
    browser.find_element("css selector", part("step")).send_keys(Keys.HOME)
    assert picture(browser) == pictures[0]
    browser.find_element("css selector", part("fact")).send_keys(Keys.ARROW_DOWN)
    assert picture(browser) not in pictures


def test_a_model_that_was_not_traced_says_so(browser, tmp_path):
    visit(browser, render(make(tmp_path, traced=False), tmp_path / "out").page)
    assert "Not traced" in read(browser, "trace-said", "textContent")
    assert browser.get_log("browser") == []


@pytest.fixture(scope="module")
def report(root, tmp_path_factory):
    """Snakemake's report of the smoke study, and the folder of that."""
    folder = copy_study(run_smoke_study(root, tmp_path_factory), tmp_path_factory.mktemp("report") / "project")
    done = snakemake(folder, "--report", "report.html")
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "report.html"


def test_the_report_says_what_the_study_is_and_groups_figures_by_the_registry(browser, report):
    visit(browser, report)
    text = browser.find_element("id", "app").text
    assert "Study smoke" in text and "mdm (diffusion), ar (autoregressive)" in text
    groups = browser.execute_script("return categories")
    shown = {name[3:]: re.findall(r"figures/(\w+)\.svg", str(files)) for name, files in sorted(groups.items())}
    assert list(shown)[0] == "The post" and list(shown)[-1] == "Tables"
    assert [name for name, figures in shown.items() if figures] == [one for one in SECTIONS if shown.get(one)]
    assert all(
        find_figure(name).section == group or group == "Reference runs" for group in shown for name in shown[group]
    )


def test_tables_of_the_report_sort(browser, report):
    visit(browser, report)
    browser.execute_script(
        """const path = Object.keys(results).find((one) => one.endsWith("/costs.html"));
        app.setView({ content: "html", contentPath: results[path].data_uri, resultPath: path })"""
    )
    browser.switch_to.frame(browser.find_element("css selector", "iframe"))
    try:
        column = """const heads = Array.from(document.querySelectorAll("th"), (head) => head.textContent);
            const at = heads.indexOf("cpu_seconds");
            return Array.from(document.querySelectorAll("tbody tr"), (row) => Number(row.cells[at].textContent))"""
        before = browser.execute_script(column)
        head = next(one for one in browser.find_elements("css selector", "th button") if one.text == "cpu_seconds")
        head.click()
        assert browser.execute_script(column) == sorted(before) != before
        head.click()
        assert browser.execute_script(column) == sorted(before, reverse=True)
    finally:
        browser.switch_to.default_content()
