"""The page and Snakemake's report in a real browser: quiet, whole, alive, and no wider than the screen."""

import json
import os
import re
import shutil
import time

import pytest
from paper_fixtures import make, render
from study_fixtures import copy_study, run_smoke_study, snakemake

from reversal.figures.registry import SECTIONS
from reversal.paper import page as pages
from reversal.paper.post import find_figure

WIDTHS = (390, 1440)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    return render(make(folder), folder / "out").page


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    if missing := [name for name, path in programs.items() if path is None]:
        pytest.skip(f"no {' and no '.join(missing)} on the path")
    os.environ.setdefault("SE_OFFLINE", "true")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs["chromium"]
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(programs["chromedriver"]))
    yield driver
    driver.quit()


def visit(browser, page, *, width=1440, scheme="light", motion=False):
    """Open the page anew; what the browser logged before is forgotten."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    features += [{"name": "prefers-reduced-motion", "value": "no-preference" if motion else "reduce"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})  # of a hidden window
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(page.as_uri())


def part(name):
    return f'#explorer-tool [data-part="{name}"]'


def choose(browser, name, value):
    """Set a control of the explorer as a reader would, and let it react."""
    script = """
        const control = document.querySelector(arguments[0]);
        control.value = arguments[1];
        control.dispatchEvent(new Event(arguments[2], { bubbles: true }));"""
    browser.execute_script(script, part(name), str(value), "input" if name == "step" else "change")


def picture(browser):
    """What the explorer shows: the canvas and the heat map."""
    script = "return arguments[0].map((name) => document.querySelector(name).innerHTML)"
    return browser.execute_script(script, [part("canvas"), part("trace")])


def options(browser, name):
    script = "return Array.from(document.querySelector(arguments[0]).options, (option) => option.value)"
    return browser.execute_script(script, part(name))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_is_quiet_and_fits(browser, page, width, scheme):
    visit(browser, page, width=width, scheme=scheme)
    time.sleep(0.3)
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert [url for url in urls if not url.startswith("data:")] == [page.as_uri()]
    wide, room = browser.execute_script(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert wide <= room
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) > 384) == (scheme == "light")


@pytest.mark.parametrize("width", WIDTHS)
def test_every_figure_formula_and_table_has_a_size(browser, page, width):
    visit(browser, page, width=width)
    sizes = browser.execute_script(
        """return Array.from(document.querySelectorAll("figure img, math, table"), (one) => {
            const box = one.getBoundingClientRect();
            return [one.tagName, box.width, box.height, one.naturalWidth];
        })"""
    )
    assert {"IMG", "math", "TABLE"} <= {tag for tag, *_ in sizes}
    assert all(wide > 0 and high > 0 and natural != 0 for _, wide, high, natural in sizes)


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_and_what_is_wide_scrolls_in_its_own_box(browser, page, width):
    visit(browser, page, width=width)
    browser.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    cut = browser.execute_script(
        """const room = document.documentElement.clientWidth;
        const scrolls = (one) => one && (getComputedStyle(one).overflowX === "auto" || scrolls(one.parentElement));
        return Array.from(document.querySelectorAll("main *"), (one) => [one, one.getBoundingClientRect().right])
            .filter(([one, right]) => right > room + 1 && !scrolls(one))
            .map(([one]) => one.tagName + "." + one.className + " " + one.textContent.slice(0, 40))"""
    )
    assert cut == []
    wide = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    assert browser.execute_script(wide)[0] <= browser.execute_script(wide)[1]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_first_screen_has_the_title_the_scale_and_the_figure(browser, page, width):
    visit(browser, page, width=width)
    found = browser.execute_script(
        """const low = (name) => document.querySelector(name).getBoundingClientRect().bottom;
        return [low("h1"), low(".subtitle"), low("main img"), document.querySelectorAll(".tldr li").length]"""
    )
    assert found[0] < found[1] < found[2] <= 900 and found[3] == 3
    assert page.stat().st_size < pages.MOST_BYTES


def test_appendices_are_closed_and_a_link_into_one_opens_it(browser, page):
    visit(browser, page)
    opened = "return Array.from(document.querySelectorAll('.appendix'), (one) => one.open)"
    assert not any(browser.execute_script(opened))
    browser.execute_script("location.hash = document.querySelectorAll('.appendix')[1].querySelector('figure').id")
    deadline = time.monotonic() + 5
    while browser.execute_script(opened).count(True) != 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_number_and_a_figure_tell_their_source(browser, page):
    visit(browser, page)
    number = browser.find_element("css selector", "p .n")
    browser.execute_script("arguments[0].focus()", number)
    tip = browser.find_element("id", "tip")
    assert tip.is_displayed() and "step_scaling.csv" in tip.text and "rule some_rule" in tip.text
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
        name = browser.execute_script("return document.getElementById(arguments[0]).textContent", anchor)
        script = "document.getElementById(arguments[0]).scrollIntoView({ behavior: 'instant' })"
        browser.execute_script(script, anchor)
        deadline = time.monotonic() + 5
        while browser.execute_script(marked) != [name]:
            assert time.monotonic() < deadline, browser.execute_script(marked)
            time.sleep(0.05)
        nav, screen = browser.execute_script(
            "const box = document.querySelector('nav').getBoundingClientRect(); "
            "return [[box.top, box.bottom], window.innerHeight]"
        )
        assert 0 <= nav[0] < nav[1] <= screen
    folded = "return !document.querySelector('nav details').open"
    assert browser.execute_script(folded) == (width < 500)


@pytest.mark.parametrize("control", ["model", "split", "fact"])
def test_the_explorer_shows_what_is_chosen(browser, page, control):
    visit(browser, page)
    assert len(browser.find_elements("css selector", "#explorer-tool select")) == 3
    before = picture(browser)
    assert "<svg" in before[1]
    for value in options(browser, control)[1:]:
        choose(browser, control, value)
        after = picture(browser)
        assert after != before
        before = after


def test_the_explorer_opens_on_a_reverse_question_at_t1_and_plays_by_itself(browser, page):
    value = "return document.querySelector(arguments[0]).value"
    visit(browser, page)
    assert browser.execute_script(value, part("split")) == "p2d_reverse"
    first = browser.execute_script(value, part("step"))
    assert first == "0"  # the made-up answers begin at the first step
    browser.find_element("id", "explorer-tool").location_once_scrolled_into_view  # noqa: B018
    time.sleep(3)
    assert browser.execute_script(value, part("step")) == first, "no motion was wanted"
    visit(browser, page, motion=True)
    browser.execute_script("document.getElementById('explorer-tool').scrollIntoView({ behavior: 'instant' })")
    deadline = time.monotonic() + 10
    while browser.execute_script(value, part("step")) == first:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    play = browser.find_element("css selector", part("play"))
    assert play.text == "Pause"
    browser.execute_script("arguments[0].click()", play)
    paused = browser.execute_script(value, part("step"))
    time.sleep(1.5)
    assert play.text == "Play" and browser.execute_script(value, part("step")) == paused


def test_cells_of_the_explorer_tell_shares_and_nats(browser, page):
    visit(browser, page)
    cells = "return Array.from(document.querySelectorAll(arguments[0] + ' rect title'), (one) => one.textContent)"
    found = [re.search(r": (-?\d+)%, (-?[\d.]+) nats", cell) for cell in browser.execute_script(cells, part("trace"))]
    assert found and all(int(one[1]) == pytest.approx(100 * float(one[2]) / 20, abs=1) for one in found)
    said = browser.execute_script("return document.querySelector(arguments[0]).textContent", part("trace-said"))
    assert "costs the rest of the answer 20.0 nats" in said


def test_the_explorer_unmasks_step_by_step(browser, page):
    visit(browser, page)
    last = int(browser.execute_script("return document.querySelector(arguments[0]).max", part("step")))
    masked, pictures = [], []
    for step in range(last + 1):
        choose(browser, "step", step)
        pictures.append(picture(browser))
        masked.append(pictures[-1][0].count('class="masked"'))
    assert masked == sorted(masked, reverse=True) and masked[0] > 0 and masked[-1] == 0
    assert pictures[0] != pictures[1]


def test_the_explorer_works_from_the_keyboard(browser, page):
    from selenium.webdriver.common.keys import Keys

    visit(browser, page)
    before = picture(browser)
    slider = browser.find_element("css selector", part("step"))
    slider.send_keys(Keys.END)
    assert picture(browser) != before
    person = browser.find_element("css selector", part("fact"))
    before = picture(browser)
    person.send_keys(Keys.ARROW_DOWN)
    assert picture(browser) != before


def test_a_model_that_was_not_traced_says_so(browser, tmp_path):
    silent = render(make(tmp_path, traced=False), tmp_path / "out").page
    visit(browser, silent)
    assert "Not traced" in browser.execute_script(
        "return document.querySelector(arguments[0]).textContent", part("trace-said")
    )
    assert browser.get_log("browser") == []


def test_a_citation_shows_its_work(browser, page):
    visit(browser, page)
    link = browser.find_element("css selector", ".cite a")
    browser.execute_script("arguments[0].focus()", link)
    tip = browser.find_element("id", "tip")
    assert tip.is_displayed() and "Berglund" in tip.text


def test_names_stay_text_in_the_explorer(browser, page):
    visit(browser, page)
    people = browser.execute_script(
        "return Array.from(document.querySelector(arguments[0]).options, (option) => option.textContent)", part("fact")
    )
    assert any("<script>alert(1)</script>" in name for name in people)
    scripts = "return document.querySelectorAll('script').length"
    assert browser.execute_script(scripts) == 2


@pytest.fixture(scope="module")
def report(root, tmp_path_factory):
    """Snakemake's report of the smoke study, and the folder of that."""
    folder = copy_study(run_smoke_study(root, tmp_path_factory), tmp_path_factory.mktemp("report") / "project")
    done = snakemake(folder, "--report", "report.html")
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "report.html"


def test_the_report_opens_with_what_the_study_is(browser, report):
    visit(browser, report)
    text = browser.find_element("id", "app").text
    assert "How masked diffusion language models recall facts" in text and "the reversal curse" in text
    assert "Study smoke" in text and "mdm (diffusion), ar (autoregressive)" in text


def test_the_report_groups_figures_by_the_registry(browser, report):
    visit(browser, report)
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
