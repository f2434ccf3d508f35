"""The page in a real browser: quiet, whole, alive, and no wider than the screen."""

import json
import os
import shutil
import time

import pytest
from rendering import make, render

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


@pytest.mark.parametrize("control", ["model", "split", "fact", "kind"])
def test_the_explorer_shows_what_is_chosen(browser, page, control):
    visit(browser, page)
    before = picture(browser)
    assert "<svg" in before[1]
    for value in options(browser, control)[1:]:
        choose(browser, control, value)
        after = picture(browser)
        assert after != before
        before = after


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
