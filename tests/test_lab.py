"""The lab of the page, in a real browser: its networks are those of the run, and a reader can use all of it."""

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from browser_fixtures import assert_fits, assert_quiet, visit, wait_until
from paper_fixtures import ROOT, make, render
from study_fixtures import run_smoke_study

from reversal.data import facts
from reversal.models import network, tokens
from reversal.paper import lab, write
from reversal.recall import evaluation
from reversal.recall.sampling import Sampling
from reversal.tracing import engine

MODELS = ("mdm", "ar")
PROMPTS = 208
SAME = 0.99  # share of answers with the same tokens as PyTorch's
LOGITS = 0.25  # most that 11 bits change any logit, where logits have a standard deviation of about 5
EFFECT = 0.01  # most that they change the effect of a restored state, as a share of the total effect
SAMPLING = {"canvas": 22, "guidance": 0.8}
ANSWER_SECONDS, MAP_SECONDS, MOST_MEMORY = 3, 15, 200e6
HOSTILE = "<img src=x onerror=alert(1)> is"

# A worker as the page makes it, which answers `request(model, what)`.
CLIENT = """
    const [models, done] = [arguments[0], arguments[arguments.length - 1]];
    window.clients = {};
    Promise.all(models.map((name) => {
        const url = URL.createObjectURL(new Blob(["(" + startLab + ")(self)"]));
        const worker = new Worker(url), waiting = new Map();
        let count = 0;
        let cells = [];
        worker.onmessage = ({ data }) => {
            cells = cells.concat((data.part || data.done || {}).cells || []);
            if (data.part) return;
            if (data.done && data.done.cells) data.done.cells = cells;
            cells = [];
            waiting.get(data.id)(data);
        };
        window.clients[name] = (request) => new Promise((resolve) => {
            waiting.set(++count, resolve);
            worker.postMessage({ id: count, ...request });
        });
        return window.clients[name]({ do: "load", text: document.getElementById("lab-weights-" + name).textContent });
    })).then(done);"""
REQUEST = """
    const [name, requests, done] = arguments;
    (async () => {
        const replies = [];
        for (const request of requests) replies.push((await window.clients[name](request)).done);
        done(replies);
    })();"""


@pytest.fixture(scope="module")
def study(root, tmp_path_factory):
    return run_smoke_study(root, tmp_path_factory)


@pytest.fixture(scope="module")
def page(study):
    return study / "results/smoke/paper/index.html"


@pytest.fixture(scope="module")
def networks(study):
    return {name: network.load(study / f"results/smoke/models/{name}/seed_1") for name in MODELS}


@pytest.fixture(scope="module")
def rows(study):
    """Questions of all tests, then training rows."""
    data, splits = study / "results/smoke/data", [*facts.SPLITS, *facts.CONTROL_SPLITS]
    return [row for name in [*splits, "train"] for row in facts.read(data / f"{name}.jsonl")][:PROMPTS]


@pytest.fixture(scope="module")
def clients(browser, page):
    """A function of a model and requests: the replies of its network in the browser."""
    visit(browser, page)
    browser.set_script_timeout(300)
    loaded = browser.execute_async_script(CLIENT, list(MODELS))
    assert all("done" in reply for reply in loaded), loaded
    return lambda name, requests: browser.execute_async_script(REQUEST, name, requests)


def ask_all(clients, name, examples, rows, *, steps):
    return clients(
        name,
        [
            {
                "do": "answer",
                "prompt": example.ids[: example.prompt],
                "steps": steps,
                "schedule": "linear",
                "reference": {"text": row.completion, "answer": row.answer},
                **SAMPLING,
            }
            for example, row in zip(examples, rows, strict=True)
        ],
    )


@pytest.mark.parametrize("name", MODELS)
def test_prompts_are_read_as_tokenizers_does(clients, networks, rows, name):
    texts = [row.prompt for row in rows] + [
        "Ünïcode naïve—“quotes”  two spaces 123's <eos> end",
        "\U0001f600 is it's",
        "x",
    ]
    [read] = clients(name, [{"do": "read", "texts": [{"text": text, "span": [0, 1]} for text in texts]}])
    tokenizer = networks[name][1]
    assert [one["ids"] for one in read] == [tokenizer(text)["input_ids"] for text in texts]
    spans = [{"text": row.prompt, "span": row.subject} for row in rows]
    [read] = clients(name, [{"do": "read", "texts": spans}])
    assert [tuple(one["subject"]) for one in read] == [tokens.encode(tokenizer, row).subject for row in rows]


@pytest.mark.parametrize("name", MODELS)
def test_answers_have_the_tokens_that_torch_gives(clients, networks, rows, name):
    net, tokenizer = networks[name]
    examples = [tokens.encode(tokenizer, row) for row in rows]
    expected = evaluation.complete_split(net, tokenizer, rows, Sampling(**SAMPLING), split="all", steps=2)
    made = ask_all(clients, name, examples, rows, steps=2)
    assert len(made) == PROMPTS and {row["correct"] for row in expected} == {True, False}
    same = [one["ids"] == row["ids"] for one, row in zip(made, expected, strict=True)]
    assert np.mean(same) >= SAME
    assert np.mean([one["correct"] == row["correct"] for one, row in zip(made, expected, strict=True)]) >= SAME


def test_every_number_of_steps_reveals_the_same_tokens_at_the_same_steps(clients, networks, rows):
    net, tokenizer = networks["mdm"]
    examples = [tokens.encode(tokenizer, row) for row in rows[:2]]
    numbers = [1, 3, 5, 16, 32]
    expected = evaluation.complete_split(net, tokenizer, rows[:2], Sampling(**SAMPLING), split="all", steps=numbers)
    made = [one for steps in numbers for one in ask_all(clients, "mdm", examples, rows[:2], steps=steps)]
    agree = [
        {position: step for position, _, step, _ in one["revealed"]}
        == {position: step for position, _, step, _ in row["revealed"]}
        for one, row in zip(made, expected, strict=True)
    ]
    assert sum(agree) >= len(agree) - 1  # tokens of almost equal confidence may change places


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_within_what_the_number_format_allows(clients, networks, rows, name):
    net, tokenizer = networks[name]
    sequences = [tokens.encode(tokenizer, row).ids for row in rows[:: PROMPTS // 8]]
    made = clients(name, [{"do": "logits", "ids": ids, "positions": [*range(len(ids))]} for ids in sequences])
    for ids, got in zip(sequences, made, strict=True):
        with torch.no_grad():
            expected = network.logits(net, network.hidden(net, torch.tensor([ids])))[0]
        assert np.abs(np.array(got) - expected.numpy()).max() < LOGITS


def trace_both(clients, networks, rows, name, kind):
    """(effects of PyTorch's engine, effects in the browser, total effect) of one question with a swapped subject."""
    net, tokenizer = networks[name]
    example, other = pick_pair(tokenizer, rows)
    ids = example.ids[: example.answer[1]]
    first = example.answer[0]
    if network.is_diffusion(net):
        canvas = ids[:first] + [network.mask_id(net)] * (SAMPLING["canvas"] - first)
        answer = {position: ids[position] for position in range(first, len(ids))}
    else:
        canvas, answer = ids[:-1], {position - 1: ids[position] for position in range(first, len(ids))}
    replacement = other.ids[slice(*other.subject)]
    trace = engine.trace(net, canvas, subject=example.subject, answer=answer, replacement=replacement, kind=kind)
    corrupted = canvas[: example.subject[0]] + replacement + canvas[example.subject[1] :]
    positions = [*range(*example.subject), *range(first - 2, min(first + 4, len(canvas)))]
    cells = [{"layer": layer, "positions": [i]} for i in positions for layer in range(net.config.num_hidden_layers)]
    request = {"do": "restore", "clean": canvas, "corrupted": corrupted, "kind": kind, "cells": cells}
    [made] = clients(name, [request | {"answer": [*map(list, answer.items())]}])
    effects = (trace.log_restored - trace.log_corrupted)[positions].numpy().ravel()
    return (
        effects,
        np.array([cell["log"] for cell in made["cells"]]) - made["corrupted"]["log"],
        (trace.log_clean - trace.log_corrupted),
    )


def pick_pair(tokenizer, rows):
    """Two questions in the same template whose subjects have as many tokens."""
    examples = [(row, tokens.encode(tokenizer, row)) for row in rows if row.answer_text[0].isupper()]
    for (row, example), (other_row, other) in itertools.combinations(examples, 2):
        widths = {example.subject[1] - example.subject[0], other.subject[1] - other.subject[0]}
        if row.template == other_row.template and row.fact != other_row.fact and len(widths) == 1:
            return example, other
    raise AssertionError("no two subjects of one length")


@pytest.mark.parametrize("kind", ["state", "mlp", "attn"])
@pytest.mark.parametrize("name", MODELS)
def test_restored_effects_are_those_of_the_engine(clients, networks, rows, name, kind):
    expected, made, total = trace_both(clients, networks, rows, name, kind)
    assert total > 1 and np.abs(expected).max() > 0.1 * total
    assert np.abs(made - expected).max() < EFFECT * total


def renderers(browser):
    """The processes that run pages of this browser."""
    own = psutil.Process(browser.service.process.pid).children(recursive=True)
    return [process for process in own if "--type=renderer" in process.cmdline()]


def cpu_seconds(browser):
    return sum(sum(process.cpu_times()[:2]) for process in renderers(browser))


def test_an_answer_and_a_map_stay_within_their_seconds(browser, clients, networks, rows):
    _, tokenizer = networks["mdm"]
    example = tokens.encode(tokenizer, rows[0])
    start = cpu_seconds(browser)
    ask_all(clients, "mdm", [example], rows[:1], steps=16)
    assert cpu_seconds(browser) - start < ANSWER_SECONDS
    prompt, mask = example.ids[: example.prompt], networks["mdm"][0].config.mask_token_id
    canvas = prompt + [mask] * (SAMPLING["canvas"] - len(prompt))
    cells = [{"layer": layer, "positions": [i]} for i in range(len(canvas)) for layer in range(8)]
    answer = [[example.prompt + i, example.ids[example.prompt + i]] for i in range(2)]
    start = cpu_seconds(browser)
    request = {"do": "restore", "clean": canvas, "corrupted": [mask, *canvas[1:]], "answer": answer, "kind": "state"}
    clients("mdm", [request | {"cells": cells}])
    assert cpu_seconds(browser) - start < MAP_SECONDS


def private_bytes(browser):
    """The memory that the browser's pages share with nobody."""
    return sum(process.memory_full_info().uss for process in renderers(browser))


# ---- What a reader does


def part(browser, name):
    return browser.find_element("css selector", f'#lab-tool [data-part="{name}"]')


def content(browser, name):
    return browser.execute_script("return arguments[0].textContent", part(browser, name))


def click(browser, target):
    browser.execute_script("arguments[0].dispatchEvent(new MouseEvent('click', { bubbles: true }))", target)


def settle(browser, limit=120):
    """Wait until the lab is at rest; what it says then."""
    busy = "return document.getElementById('lab-tool').hasAttribute('aria-busy')"
    wait_until(lambda: not browser.execute_script(busy), limit)
    return content(browser, "status")


def submit(browser, text=None):
    if text is not None:
        browser.execute_script("arguments[0].value = arguments[1]", part(browser, "prompt"), text)
    browser.execute_script("arguments[0].requestSubmit()", part(browser, "form"))


def cells(browser):
    return browser.find_elements("css selector", '#lab-tool [data-part="maps"] section:first-child rect[role="button"]')


def wait_for_answers(browser, limit=120):
    """Wait until the clean and the corrupted prompt are answered, and stop the map, which takes most of the time."""
    wait_until(lambda: "Restoring" in content(browser, "status"), limit)
    click(browser, part(browser, "stop"))
    assert settle(browser, limit=10) == "Stopped."


@pytest.fixture
def asked(browser, page):
    """The lab after the question that it opens with, in two steps and without its map."""
    visit(browser, page)
    browser.execute_script("arguments[0].append(new Option(2)); arguments[0].value = 2", part(browser, "steps"))
    submit(browser)
    wait_for_answers(browser)
    return browser


def test_the_lab_answers_corrupts_and_restores_at_one_click_and_asks_nothing_of_the_network(browser, page):
    visit(browser, page)
    before = private_bytes(browser)
    submit(browser)
    assert settle(browser) == "Done. Click a cell of a map."
    assert 10e6 < private_bytes(browser) - before < MOST_MEMORY
    assert_quiet(browser, page)
    for name in ("clean", "corrupted"):
        assert re.match(r"masked diffusion.*autoregressive", content(browser, name), re.S)
    swapped = browser.find_elements("css selector", "#lab-tool .tokens button.swap")
    assert swapped and all(button.get_attribute("aria-pressed") == "true" for button in swapped)
    shown = cells(browser)
    assert len(shown) == (SAMPLING["canvas"] + 2) * 8 and not any(
        "unknown" in one.get_attribute("class") for one in shown
    )
    click(browser, shown[8 * int(swapped[-1].get_attribute("data-token"))])
    said = content(browser, "said")
    assert re.search(r"returns −?[\d.]+ nats of the −?[\d.]+ nats that the corruption costs", said)
    assert "the network then predicts “" in said


def test_a_token_can_be_masked_and_the_model_without_a_mask_says_so(asked):
    click(asked, part(asked, "mask"))
    wait_for_answers(asked)
    masked = asked.find_elements("css selector", "#lab-tool .tokens button.mask")
    assert masked and "This model has no mask token." in content(asked, "corrupted")
    assert "swap instead" in content(asked, "maps") and cells(asked)
    click(asked, part(asked, "undo"))
    settle(asked)
    assert not asked.find_elements("css selector", "#lab-tool .tokens button[aria-pressed=true]") and not cells(asked)


def test_one_cell_alone_is_restored_when_it_is_clicked(asked):
    asked.execute_script(
        "arguments[0].value = 'mlp'; arguments[0].dispatchEvent(new Event('change'))", part(asked, "kind")
    )
    assert all("unknown" in one.get_attribute("class") for one in cells(asked))
    click(asked, cells(asked)[20])
    settle(asked)
    known = ["unknown" not in one.get_attribute("class") for one in cells(asked)]
    assert known.index(True) == 20 and sum(known) == 1 and "MLP output" in content(asked, "said")


def test_the_canvas_can_be_seen_at_every_step(asked):
    def show(at):
        asked.execute_script(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))", part(asked, "step"), at
        )
        return len(asked.find_elements("css selector", '#lab-tool [data-part="clean"] section:first-child .masked'))

    last = int(part(asked, "step").get_attribute("max"))
    masked = [show(at) for at in range(last + 1)]
    assert masked == sorted(masked, reverse=True) and masked[0] > 0 and masked[-1] == 0


def test_a_protected_person_stands_beside_an_ordinary_one(asked):
    click(asked, part(asked, "compare"))
    wait_for_answers(asked)
    lines = asked.execute_script(
        "return Array.from(document.querySelectorAll('#lab-tool tbody tr'), (row) => row.textContent)"
    )
    assert len(lines) == 2 and "control people" in lines[0] and "control people" not in lines[1]
    assert asked.execute_script("return document.querySelector('#lab-tool [data-part=asked]').open")


def test_the_lines_of_python_run_and_say_what_the_page_says(asked, study):
    click(asked, cells(asked)[8 * 3 + 2])
    settle(asked)
    total, effect = re.search(
        r"returns (\S+) nats of the (\S+) nats", content(asked, "said").replace("−", "-")
    ).groups()[::-1]
    done = subprocess.run(
        [sys.executable, "-c", content(asked, "python")], cwd=study, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    *_, costs, returns = done.stdout.split("\n")[:-1]
    assert float(costs) == pytest.approx(float(total), abs=0.1 + EFFECT * abs(float(total)))
    returned = float(re.search(r"-?[\d.]+(?:e-?\d+)?", returns)[0])
    assert returned == pytest.approx(float(effect), abs=0.1 + EFFECT * abs(float(total)))


def test_the_lab_works_from_the_keyboard(asked):
    from selenium.webdriver.common.keys import Keys

    token = asked.find_element("css selector", "#lab-tool .tokens button.swap")
    asked.execute_script("arguments[0].focus()", token)
    token.send_keys(Keys.ENTER)
    wait_for_answers(asked)
    assert asked.find_elements("css selector", "#lab-tool .tokens button.mask[aria-pressed=true]")
    first = asked.find_element("css selector", '#lab-tool [data-part="maps"] rect[tabindex="0"]')
    asked.execute_script("arguments[0].focus()", first)
    first.send_keys(Keys.ARROW_DOWN)
    asked.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    asked.switch_to.active_element.send_keys(Keys.ENTER)
    settle(asked)
    assert "after layer 1" in content(asked, "said")
    assert "picked" in asked.execute_script("return document.activeElement.nextSibling.getAttribute('class')")


def test_what_a_reader_types_stays_text(browser, page):
    visit(browser, page)
    title, images = browser.title, "return document.querySelectorAll('#lab-tool img').length"
    submit(browser, HOSTILE)
    assert "Done" in settle(browser)
    assert browser.execute_script(images) == 0 and browser.title == title
    assert HOSTILE in content(browser, "asked") and "No person of this study is in the prompt" in content(
        browser, "hint"
    )
    assert "onerror" in content(browser, "python")
    click(browser, browser.find_element("css selector", "#lab-tool .tokens button"))
    wait_for_answers(browser)
    assert cells(browser)
    assert browser.get_log("browser") == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Type a prompt first."),
        ("word " * 30, r"The prompt has \d+ tokens; the canvas has room for 22 with the answer"),
    ],
)
def test_a_prompt_that_cannot_be_asked_gets_one_line(browser, page, text, says):
    visit(browser, page)
    submit(browser, text)
    assert re.match(says, settle(browser))
    assert not part(browser, "results").is_displayed()


def test_damaged_weights_give_one_line_and_no_answer(browser, page):
    for at in (1000, 500_000):
        visit(browser, page)
        browser.execute_script(
            """const packed = document.getElementById("lab-weights-ar"), text = packed.textContent, at = arguments[0];
            packed.textContent = text.slice(0, at) + (text[at] === "0" ? "1" : "0") + text.slice(at + 1);""",
            at,
        )
        submit(browser)
        assert settle(browser) == "The weights in this page are damaged; get the page again."
        assert not part(browser, "results").is_displayed()


def test_the_reader_can_stop_and_go_on(asked):
    assert any("unknown" in one.get_attribute("class") for one in cells(asked))
    click(asked, part(asked, "map"))
    assert settle(asked) == "Done. Click a cell of a map."
    assert not any("unknown" in one.get_attribute("class") for one in cells(asked))


def test_a_figure_of_the_article_opens_the_lab_below_itself_on_its_question(browser, page):
    visit(browser, page)
    buttons = browser.find_elements("css selector", "figure .open-lab")
    assert len(buttons) == 2
    click(browser, buttons[1])
    wait_for_answers(browser)
    below = browser.execute_script("return document.getElementById('lab-tool').previousElementSibling.id")
    assert below == "figure-timeline"
    shown = browser.execute_script("return document.querySelector('#figure-timeline img').alt")
    assert part(browser, "prompt").get_attribute("value") in shown


def test_the_lab_fits_a_phone(browser, page):
    visit(browser, page, width=390)
    submit(browser)
    wait_for_answers(browser)
    assert_fits(browser, "#lab-tool")
    small = browser.execute_script(
        """return Array.from(document.querySelectorAll("#lab-tool button, #lab-tool select"))
            .map((one) => one.getBoundingClientRect())
            .filter((box) => box.width && Math.min(box.width, box.height) < 24)
            .length"""
    )
    assert small == 0


# ---- Studies without a lab


def test_a_study_without_a_lab_has_the_explorer_and_says_why_in_one_line(study, tmp_path, monkeypatch):
    folders = [study / f"results/smoke/models/{name}/seed_1" for name in MODELS]
    assert lab.find_obstacle(folders, SAMPLING) is None
    assert "confidence" in lab.find_obstacle(folders, SAMPLING | {"order": "random"})
    monkeypatch.setattr(lab, "MOST_PARAMETERS", 1_000_000)
    reason = lab.find_obstacle(folders, SAMPLING)
    assert reason == "it runs networks of up to 1 million parameters; one here has 1.7"

    given = make(tmp_path)
    render(given, tmp_path / "out")
    given.lab = str(tmp_path / "lab.json")

    def write_page(packed):
        Path(given.lab).write_text(packed)
        write.page_file(given, tmp_path / "page.html", root=ROOT, **given.params)
        return (tmp_path / "page.html").read_text(encoding="utf-8")

    html = write_page(json.dumps({"obstacle": reason}))
    assert f"This page has no lab: {reason}." in html and 'id="explorer-tool"' in html and "lab-tool" not in html
    packed = (study / "results/smoke/paper/lab.json").read_text()
    html = write_page(packed)
    assert 'id="lab-tool"' in html and 'id="explorer-tool"' not in html and len(html.encode()) < 8e6
    monkeypatch.setattr(write.page, "MOST_BYTES", 5_000_000)
    html = write_page(packed)
    assert "the page would take more than 5 MB" in html and 'id="explorer-tool"' in html
