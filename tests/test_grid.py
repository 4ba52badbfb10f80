"""The grid divides GPUs as xDiT does, and refuses what cannot be divided with the equation and its numbers."""

import pytest

from profiles.errors import InfeasibleError
from strategies.patching.grid import Grid, make_grid
from validate.equal_blocks import equal_blocks_transformer


def sampling(make, num_gpus, **workload):
    return make.sampling(equal_blocks_transformer(4, heads=8), make.cluster(), num_gpus, **workload)


def test_tensor_is_innermost_and_guidance_outermost():
    grid = Grid(guidance=2, pipeline=2, ring=2, ulysses=2, tensor=2)
    assert grid.positions == 32
    assert [*grid.teams()] == [
        (0, 0, tuple(range(8))), (0, 1, tuple(range(8, 16))),
        (1, 0, tuple(range(16, 24))), (1, 1, tuple(range(24, 32))),
    ]  # fmt: skip
    team = grid.team(0, 1)
    assert grid.groups_of("tensor", team) == [(8, 9), (10, 11), (12, 13), (14, 15)]
    assert grid.groups_of("ulysses", team) == [(8, 10), (9, 11), (12, 14), (13, 15)]
    assert grid.groups_of("ring", team) == [(8, 12), (9, 13), (10, 14), (11, 15)]
    assert grid.groups_of("sequence", team) == [(8, 10, 12, 14), (9, 11, 13, 15)]


@pytest.mark.parametrize(
    ("ring", "ulysses", "tensor"), [(1, 1, 1), (2, 3, 1), (1, 2, 3), (3, 1, 2), (2, 2, 2)]
)
def test_groups_of_each_kind_hold_every_device_once(ring, ulysses, tensor):
    grid = Grid(ring=ring, ulysses=ulysses, tensor=tensor)
    team = grid.team(0, 0)
    degrees = {"tensor": tensor, "ulysses": ulysses, "ring": ring, "sequence": ring * ulysses}
    for kind, size in degrees.items():
        groups = grid.groups_of(kind, team)
        assert {len(group) for group in groups} == {size}
        assert sorted(device for group in groups for device in group) == list(team)


def test_a_pass_holds_the_predictions_of_its_group(make):
    cases = ("none", 1, 4), ("batch", 1, 12), ("parallel", 2, 8), ("sequential", 2, 4)  # three for each image
    for guidance, degree, batch in cases:
        scenario = sampling(make, 8, guidance=guidance, batch_size=4, guided_predictions=3)
        assert Grid(guidance=degree, pipeline=8 // degree).batch(scenario) == batch
    assert Grid(data=4, pipeline=2).batch(sampling(make, 8, guidance="batch", batch_size=4)) == 2


REFUSED = [
    ({"pipeline": 3}, {}, r"pipeline_degree\(3\) is not gpus\(8\)"),
    ({}, {}, r"runs on one GPU, not on gpus\(8\)"),
    ({"ring": 2, "ulysses": 2}, {}, r"ulysses_degree\(2\) \* ring_degree\(2\) = 4 is not gpus\(8\)"),
    ({"ring": 3, "data": None}, {"batch_size": 8}, r"ring_degree\(3\) does not divide gpus\(8\)"),
    (
        {"pipeline": 4, "data": None},
        {"batch_size": 3},
        r"batch_size\(3\) is no multiple of the data-parallel degree gpus\(8\) / 4 = 2",
    ),
    ({"guidance": 2, "pipeline": 4}, {}, r"guidance_degree\(2\) is not 1, and guidance is none"),
    ({"guidance": 4, "pipeline": 2}, {"guidance": "batch"}, r"guidance_degree\(4\) is not 1 or 2"),
    (
        {"guidance": 1, "pipeline": 8},
        {"guidance": "parallel"},
        r"guidance_degree\(1\) is not 2, and guidance is parallel",
    ),
]


def test_what_cannot_be_divided_is_refused(make):
    for degrees, workload, message in REFUSED:
        with pytest.raises(InfeasibleError, match=message):
            make_grid(sampling(make, 8, **workload), **degrees)
    for name in ("ulysses", "tensor"):
        with pytest.raises(InfeasibleError, match=f"^8 heads, {name} 16: 8 % 16 = 8; 2, 4 and 8 divide 8$"):
            make_grid(sampling(make, 16), **{name: 16})
