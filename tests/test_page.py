"""The page and Snakemake's report in a real browser: quiet, whole, alive, and no wider than the screen."""

import json
import os
import re
import shutil
import time

import pytest
from paper_fixtures import make, render
from study_fixtures import copy_study, run_smoke_study, snakemake

from reversal.paper import page as pages

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


def visit(browser, page, *, width=1440, scheme="light"):
    """Open the page anew; what the browser logged before is forgotten."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
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
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith("data:")] == [page.as_uri()]
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
def test_the_first_screen_has_the_finding_and_its_figure(browser, page, width):
    visit(browser, page, width=width)
    told, low = browser.execute_script(
        """const finding = document.querySelector("main > p");
        const figure = document.querySelector("#figure-finding img");
        return [finding.textContent, figure.getBoundingClientRect().bottom]"""
    )
    assert "a masked diffusion model recalls 90% of the names" in told and low <= 900
    room = """return Array.from(document.querySelectorAll("#figure-finding .picture, [id$=memories] .picture"), (one) =>
        [one.scrollWidth, one.clientWidth])"""
    scrolled = browser.execute_script(room)
    assert scrolled and all(wide <= seen for wide, seen in scrolled)  # a phone shows them whole
    assert page.stat().st_size < pages.MOST_BYTES


@pytest.mark.parametrize("width", WIDTHS)
def test_the_contents_follow_the_reader(browser, page, width):
    visit(browser, page, width=width)
    marked = """return Array.from(document.querySelectorAll("nav [aria-current]"), (link) => link.textContent)"""
    assert browser.execute_script(marked) == []
    for anchor, name in (("causal-pathways", "Causal pathways"), ("limitations", "Limitations")):
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


@pytest.mark.parametrize("control", ["model", "split", "fact", "kind", "reading"])
def test_the_explorer_shows_what_is_chosen(browser, page, control):
    visit(browser, page)
    before = picture(browser)
    assert "<svg" in before[1]
    for value in options(browser, control)[1:]:
        choose(browser, control, value)
        after = picture(browser)
        assert after != before
        before = after


def test_the_explorer_tells_nats_shares_and_what_is_needed(browser, page):
    visit(browser, page)
    said = "return document.querySelector(arguments[0]).textContent"
    cells = "return Array.from(document.querySelectorAll(arguments[0] + ' rect title'), (one) => one.textContent)"
    found = {}
    for reading in options(browser, "reading"):
        choose(browser, "reading", reading)
        found[reading] = [
            float(text.split(": ")[1].split()[0].rstrip("%")) for text in browser.execute_script(cells, part("trace"))
        ]
    (cost,) = re.findall(
        r"costs what is still to come of the answer ([\d.]+) nats", browser.execute_script(said, part("trace-said"))
    )
    assert float(cost) == 20.0
    # Of the made-up traces each state is needed for half of what it returns.
    for nats, share, needed in zip(found["nats"], found["share"], found["needed"], strict=True):
        assert share == pytest.approx(100 * nats / 20, abs=0.6) and needed == pytest.approx(share / 2, abs=0.6)


def test_the_explorer_shows_when_the_subject_is_needed(browser, page):
    visit(browser, page)
    drawn = "return [document.querySelectorAll(arguments[0] + ' polyline').length, "
    drawn += "Array.from(document.querySelectorAll(arguments[0] + ' td'), (cell) => cell.textContent)]"
    lines, cells = browser.execute_script(drawn, part("time"))
    assert lines == 3
    assert cells == ["0 wrong", "2 wrong", "4 right", "0 right", "2 right", "4 wrong"]


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
    silent = render(make(tmp_path, answered=False), tmp_path / "out").page
    visit(browser, silent)
    assert "no traces" in browser.execute_script(
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
    assert "How is bidirectional information retrieved" in text and "the reversal curse" in text
    assert "Study smoke" in text and "mdm (diffusion), ar (autoregressive)" in text


def test_the_report_groups_figures_as_the_post_does(browser, report):
    visit(browser, report)
    groups = browser.execute_script("return categories")
    (post,) = (report.parent / "results/smoke/paper").glob("*.md")
    under, heading = {}, "The finding"
    for line in post.read_text().splitlines():
        if title := re.match(r"###? (.*) \{#", line):
            heading = title[1] if title[1] != "tl;dr" else heading
        elif figure := re.search(r"img/[^/]*/(\w+)\.svg' [^>]*alt=", line):
            under.setdefault(heading, []).append(figure[1])
    shown = {name[3:]: sorted(re.findall(r"figures/(\w+)\.svg", str(files))) for name, files in sorted(groups.items())}
    assert {name: figures for name, figures in shown.items() if figures} == {k: sorted(v) for k, v in under.items()}
    assert [name for name, figures in shown.items() if figures] == list(under)
    assert list(shown)[0] == "The post" and list(shown)[-1] == "Tables"


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
