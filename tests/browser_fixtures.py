"""What tests of pages do in a browser; `conftest` starts it."""

import json
import os
import shutil
import time

import pytest

WIDTHS = (390, 1440)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


def start(profile):
    """A Chromium that keeps its profile in a folder; skip where there is none."""
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    if missing := [name for name, path in programs.items() if path is None]:
        pytest.skip(f"no {' and no '.join(missing)} on the path")
    os.environ.setdefault("SE_OFFLINE", "true")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs["chromium"]
    for flag in [*FLAGS.split(), f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(programs["chromedriver"]))


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


def assert_quiet(browser, page):
    """The page has logged nothing and asked for nothing since its visit."""
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert [url for url in urls if not url.startswith(("data:", "blob:"))] == [page.as_uri()]


def assert_fits(browser, within):
    """With all details open, nothing `within` a part of the page is cut: what is wide scrolls in its own box."""
    cut = browser.execute_script(
        """for (const one of document.querySelectorAll("details")) one.open = true;
        const room = document.documentElement.clientWidth;
        const scrolls = (one) => one && (getComputedStyle(one).overflowX === "auto" || scrolls(one.parentElement));
        return Array.from(document.querySelectorAll(arguments[0] + " *"))
            .filter((one) => one.getBoundingClientRect().right > room + 1 && !scrolls(one))
            .map((one) => one.tagName + "." + one.className + " " + one.textContent.slice(0, 40))""",
        within,
    )
    assert cut == []
    assert browser.execute_script("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def wait_until(condition, limit=10):
    """Wait until a function returns something true."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
