"""Hooks see and change what they say, and are gone when their block ends, however it ends."""

import pytest
import storage_fixtures
import torch
from torch import nn

from reversal.models import hooks


class Block(nn.Module):
    """A module that adds to what its part put out, in place, as some networks do; and may put out a tuple."""

    def __init__(self, paired=False):
        super().__init__()
        self.part, self.paired = nn.Linear(3, 3), paired

    def forward(self, x):
        found = self.part(x)
        found += x
        return (found, "weights") if self.paired else found


@pytest.fixture
def block():
    torch.manual_seed(0)
    return Block()


@pytest.fixture
def x():
    return torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))


def test_inputs_and_outputs_are_those_of_the_module_at_its_time(block, x):
    expected = block.part(x)
    with torch.no_grad(), hooks.inputs({"a": block.part}) as given, hooks.outputs({"a": block.part}) as found:
        block(x)
    assert torch.equal(given["a"], x)
    assert torch.equal(found["a"], expected)


@pytest.mark.parametrize("paired", [False, True])
def test_values_are_put_where_they_belong_and_nowhere_else(paired, x):
    block = Block(paired)
    row, place, values = torch.tensor([1, 0]), torch.tensor([3, 2]), torch.ones(2, 3, requires_grad=True)
    plain = block(x)[0] if paired else block(x)
    with hooks.attached([(block, hooks.overwrite(row, place, values))]):
        changed = block(x)
    if paired:
        changed, weights = changed
        assert weights == "weights"
    expected = plain.clone()
    expected[1, 3] = expected[0, 2] = 1
    assert torch.equal(changed, expected)
    assert torch.autograd.grad(changed.sum(), values)[0].eq(1).all(), "a search follows the slope"


def test_skipped_blocks_put_out_what_is_known(block, x):
    with hooks.skipped([block], x):
        assert block("anything", mask=None) is x
    assert block(x) is not x


@pytest.mark.parametrize("how", ["attached", "inputs", "outputs", "skipped"])
def test_nothing_outlives_a_block_that_ends_in_an_error(how, block, x):
    expected = block(x)
    context = {
        "attached": lambda: hooks.attached([(block.part, hooks.overwrite(0, 0, torch.zeros(3)))]),
        "inputs": lambda: hooks.inputs({0: block.part}),
        "outputs": lambda: hooks.outputs({0: block.part, 1: block}),
        "skipped": lambda: hooks.skipped([block, block.part], x),
    }[how]
    with pytest.raises(KeyboardInterrupt), context():
        assert not storage_fixtures.untouched(block)
        raise KeyboardInterrupt
    assert storage_fixtures.untouched(block)
    assert torch.equal(block(x), expected)


def test_a_hook_that_cannot_be_attached_takes_the_others_with_it(block):
    with pytest.raises(AttributeError), hooks.attached([(block, print), (None, print)]):
        pass
    assert storage_fixtures.untouched(block)
