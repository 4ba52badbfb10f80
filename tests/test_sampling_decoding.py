"""A decoder whose rows real ranks divide decodes what one process does, and sends what the plan says."""

import pytest
from decoding import divided, planned_bytes, undivided

from validate.running.sampling.comparison import SAME, relative

pytestmark = pytest.mark.slow
PIXELS = 64


def test_a_divided_decoder_decodes_the_same_image_with_the_bytes_of_the_plan():
    """Of three ranks two have three of the eight rows of latents, and the one in the middle sends to both others."""
    whole, found, planned = undivided(PIXELS), divided(3, PIXELS), planned_bytes(3, PIXELS)
    assert all(relative(decoded.image, whole) < SAME for decoded, _ in found)
    between = found[1][0].sent
    assert (between["send_recv"], between["all_reduce"]) == (planned["send_recv"], planned["all_reduce"])
    assert [decoded.sent["send_recv"] for decoded, _ in found] == [
        between["send_recv"] // of for of in (2, 1, 2)
    ]
    assert sum(decoded.sent["all_gather"] for decoded, _ in found) == planned["all_gather"]
    assert relative(found[0][1].image, whole) > 1000 * SAME, "seams must show without the rows of others"
