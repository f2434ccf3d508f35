"""What several tests share: the repository, its word lists, and tiny networks."""

import os
from pathlib import Path

import pytest
import torch

from reversal.common import batches
from reversal.data.generated import make, read_words
from reversal.models import network, tokens

ROOT = Path(__file__).resolve().parent.parent
# For the processes that tests start.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "workflow"), os.getenv("PYTHONPATH")]))

# Files that take minutes begin first, so that test processes end together. The first makes the smoke study; by the time
# that others ask for it, it is there.
LONG = ("test_workflow.py", "test_render.py", "test_figures.py", "test_slurm.py", "test_train.py", "test_pairs.py")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Tests run side by side; more threads would only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def shared():
    """The reference material beside the repository, where it is."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("no ../shared beside the repository")
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
def batches_of(monkeypatch):
    """Once called, batches have at most so many rows."""
    return lambda rows: monkeypatch.setitem(batches.SIZES, "cpu", rows)


@pytest.fixture
def short_of_memory(monkeypatch):
    """Once called, networks run out of memory with more than so many rows; returns the sizes that were tried."""
    hidden, tried = network.hidden, []

    def limit(rows):
        def small(net, ids, attention_mask=None, **told):
            tried.append(len(ids))
            if len(ids) > rows:
                raise torch.OutOfMemoryError("out of memory")
            return hidden(net, ids, attention_mask, **told)

        monkeypatch.setattr(network, "hidden", small)
        return tried

    return limit


@pytest.fixture(params=[True, False], ids=["autoregressive", "diffusion"])
def tiny(request, tokenizer):
    """A random network of either family over `tokenizer`."""
    return network.new(causal=request.param, vocab=len(tokenizer), width=32, layers=2, heads=2, mlp=64, eos=0, seed=0)
