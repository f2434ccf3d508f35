"""Fixtures of several tests: the repository, its word lists and data, tiny networks, and limits of memory."""

import os
from pathlib import Path

import browser_fixtures
import pytest
import torch

from reversal.common import batches
from reversal.data.generated import make, read_words
from reversal.models import network, tokens

ROOT = Path(__file__).resolve().parent.parent
# For the processes that tests start.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "workflow"), os.getenv("PYTHONPATH")]))

# Files that take minutes run first, so that the test processes end at about the same time. The first one runs the smoke
# study, which others use later.
LONG = ("test_workflow.py", "test_render.py", "test_figures.py", "test_slurm.py", "test_train.py", "test_pairs.py")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.fixture(autouse=True, scope="session")
def use_one_thread():
    """Tests run in parallel; more threads would only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def shared():
    """The folder of reference material next to the repository, if it is there."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("no ../shared next to the repository")
    return folder


@pytest.fixture(scope="session")
def words():
    return read_words(ROOT / "data/words")


@pytest.fixture(scope="session")
def generated():
    """The default study's facts, training rows and splits."""
    return make(
        words=ROOT / "data/words",
        templates=ROOT / "data/templates",
        people_per_group=30,
        train_templates=30,
        test_templates=10,
        seed=1,
    )


@pytest.fixture(scope="session")
def tokenizer(generated):
    """A small tokenizer trained on the default study's rows."""
    return tokens.train_tokenizer([row.text for row in generated[1]], 600)


@pytest.fixture
def limit_batches(monkeypatch):
    """A function that limits batches to a number of rows."""
    return lambda rows: monkeypatch.setitem(batches.SIZES, "cpu", rows)


@pytest.fixture
def limit_memory(monkeypatch):
    """A function that makes networks run out of memory beyond a number of rows; it returns the batch sizes tried."""
    hidden, tried = network.hidden, []

    def limit(rows):
        def limited_hidden(net, ids, attention_mask=None, **options):
            tried.append(len(ids))
            if len(ids) > rows:
                raise torch.OutOfMemoryError("out of memory")
            return hidden(net, ids, attention_mask, **options)

        monkeypatch.setattr(network, "hidden", limited_hidden)
        return tried

    return limit


@pytest.fixture(params=[True, False], ids=["autoregressive", "diffusion"])
def tiny(request, tokenizer):
    """A random network of either family over `tokenizer`."""
    return network.new(causal=request.param, vocab=len(tokenizer), width=32, layers=2, heads=2, mlp=64, eos=0, seed=0)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    driver = browser_fixtures.start(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()
