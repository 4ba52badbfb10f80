"""Trust: what published numbers say of an estimate, by task, family of devices and kind of method."""

import pytest

from profiles.costs.trust import COLUMNS, TRUST, Trust, read_trust, trust_of
from profiles.errors import InputError
from strategies.registry import all_samplers, all_strategies


def written(tmp_path, *lines):
    path = tmp_path / "trust.csv"
    path.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n", encoding="utf-8")
    return path


def test_the_shipped_file_names_strategies_that_exist_each_kind_once():
    trusts = read_trust(TRUST)
    assert trusts
    keys = [(one.task, one.family, one.kind) for one in trusts]
    assert len(set(keys)) == len(keys)
    for one in trusts:
        assert set(one.strategies) <= {*all_strategies(), *all_samplers()}
        assert one.numbers > 0
        assert 0 < one.median_error <= one.worst_error


def test_what_no_published_number_is_of_says_so():
    trust = trust_of("train", "a100-80gb-sxm", "a-strategy-of-ones-own", 8)
    near = trust_of("train", "a100-80gb-sxm", "ddp", 8)
    assert trust == Trust("train", "measured", "a-strategy-of-ones-own", nearest=near)
    assert str(trust) == (
        "no independent published number (training, a-strategy-of-ones-own, on GPUs with measured kernels); nearest:"
        f" {near.numbers} numbers of data parallel, too few to judge by"
    )
    drawn = trust_of("sample", "l20-48gb", "hybrid", 8)
    assert drawn.nearest == trust_of("sample", "l20-48gb", "hybrid", 1)
    assert f"; nearest: {drawn.nearest.numbers} numbers of one GPU: median error " in str(drawn)


def test_a_trust_says_how_many_numbers_and_how_far_off():
    def words(numbers):
        return str(Trust("train", "measured", "pipeline", ("spp",), numbers, 0.1234, 0.2))

    where = "(training, pipeline, on GPUs with measured kernels)"
    assert words(4) == f"4 independent published numbers {where}: median error 12.3%, worst 20%"
    assert words(2) == f"2 independent published numbers {where}, too few to judge by"
    assert words(1) == f"1 independent published number {where}, too few to judge by"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nothing,measured,pipeline,spp,1,0.1,0.2", "task is 'nothing', must be one of train, sample"),
        ("train,measured,pipeline,spp,1,nan,0.2", "median_error"),
    ],
)
def test_a_broken_file_is_refused_by_line(tmp_path, line, message):
    with pytest.raises(InputError, match=r"trust.csv:2: .*") as caught:
        read_trust(written(tmp_path, line))
    assert message in str(caught.value)
