"""What fusion leaves between products, as inductor plans it: in closed form, and in the stacks that ship it."""

import pytest
import torch
from torch import nn

from profiles.software.stacks import load_stack
from validate.steps.fusing import HALF_BYTES, blocks, traffic


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of inductor itself
def test_one_activation_is_read_and_written_once_and_shipped_chains_are_as_counted():
    rows, width = 1024, 256
    block = nn.Sequential(nn.Linear(width, width, bias=False), nn.SiLU(), nn.Linear(width, width, bias=False))
    products, forward, backward = traffic(block, torch.ones(rows, width, dtype=torch.bfloat16))
    hidden = HALF_BYTES * rows * width
    assert (products, forward) == (4 * hidden, 2 * hidden)
    assert backward >= 3 * hidden  # its gradient is read with its input, and written
    ((*_, block, given),) = (of for of in blocks() if of[0] == "pixart")
    products, *chains = traffic(block, **given)
    shipped = load_stack("compiled").on_blocks_of("pixart")
    counted = [of / products for of in chains]
    assert [shipped.forward_chains, shipped.backward_chains] == pytest.approx(counted, abs=0.005)
