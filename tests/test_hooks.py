"""Hooks record and change what they claim to, and are removed when their `with` block ends, also by an error."""

import pytest
import storage_fixtures
import torch
from torch import nn

from reversal.models import hooks


class Block(nn.Module):
    """A module that adds to its part's output in place, as some networks do, and may return a tuple."""

    def __init__(self, returns_tuple=False):
        super().__init__()
        self.part, self.returns_tuple = nn.Linear(3, 3), returns_tuple

    def forward(self, x):
        output = self.part(x)
        output += x
        return (output, "weights") if self.returns_tuple else output


@pytest.fixture
def block():
    torch.manual_seed(0)
    return Block()


@pytest.fixture
def x():
    return torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))


def test_recorded_inputs_and_outputs_are_not_changed_later_in_place(block, x):
    expected = block.part(x)
    modules = {"a": block.part}
    with torch.no_grad(), hooks.record_inputs(modules) as inputs, hooks.record_outputs(modules) as outputs:
        block(x)
    assert torch.equal(inputs["a"], x)
    assert torch.equal(outputs["a"], expected)


@pytest.mark.parametrize("returns_tuple", [False, True])
def test_values_are_put_at_their_row_and_position_and_nowhere_else(returns_tuple, x):
    block = Block(returns_tuple)
    row, position, values = torch.tensor([1, 0]), torch.tensor([3, 2]), torch.ones(2, 3, requires_grad=True)
    expected = block(x)[0] if returns_tuple else block(x)
    with hooks.attach([(block, hooks.overwrite(row, position, values))]):
        changed = block(x)
    if returns_tuple:
        changed, weights = changed
        assert weights == "weights"
    expected = expected.clone()
    expected[1, 3] = expected[0, 2] = 1
    assert torch.equal(changed, expected)
    assert torch.autograd.grad(changed.sum(), values)[0].eq(1).all(), "values are optimised by their gradient"


def test_skipped_blocks_return_the_given_output(block, x):
    with hooks.skip_blocks([block], x):
        assert block("anything", mask=None) is x
    assert block(x) is not x


@pytest.mark.parametrize("context_manager", ["attached", "inputs", "outputs", "skipped"])
def test_no_hook_outlives_a_block_that_ends_in_an_error(context_manager, block, x):
    expected = block(x)
    context = {
        "attached": lambda: hooks.attach([(block.part, hooks.overwrite(0, 0, torch.zeros(3)))]),
        "inputs": lambda: hooks.record_inputs({0: block.part}),
        "outputs": lambda: hooks.record_outputs({0: block.part, 1: block}),
        "skipped": lambda: hooks.skip_blocks([block, block.part], x),
    }[context_manager]
    with pytest.raises(KeyboardInterrupt), context():
        assert not storage_fixtures.has_no_hooks(block)
        raise KeyboardInterrupt
    assert storage_fixtures.has_no_hooks(block)
    assert torch.equal(block(x), expected)


def test_a_hook_that_cannot_be_attached_removes_the_others(block):
    with pytest.raises(AttributeError), hooks.attach([(block, print), (None, print)]):
        pass
    assert storage_fixtures.has_no_hooks(block)
