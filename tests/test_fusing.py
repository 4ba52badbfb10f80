"""What fusion leaves between products, as inductor plans it, where that is known in closed form."""

import pytest
import torch
from torch import nn

from validate.steps.fusing import HALF_BYTES, traffic


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of inductor itself
def test_one_activation_between_two_products_is_read_and_written_once():
    rows, width = 1024, 256
    block = nn.Sequential(nn.Linear(width, width, bias=False), nn.SiLU(), nn.Linear(width, width, bias=False))
    products, forward, backward = traffic(block, torch.ones(rows, width, dtype=torch.bfloat16))
    hidden = HALF_BYTES * rows * width
    assert (products, forward) == (4 * hidden, 2 * hidden)
    assert backward >= 3 * hidden  # its gradient is read with its input, and written
