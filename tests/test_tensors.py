"""Tensors in runs: as a list of them, without one object for each."""

from hypothesis import given
from hypothesis import strategies as st

from strategies.plans.plan import Plan, Tensor, Tensors

runs = st.lists(
    st.tuples(st.sampled_from(["saved", "hidden"]), st.integers(0, 2), st.integers(0, 4), st.integers(0, 4))
)


def written_out(given_runs):
    """The tensors that runs of (role, stage, first number, count) stand for, in runs and one by one."""
    tensors, each = Tensors(), []
    for size, (role, stage, first, count) in enumerate(given_runs):
        indices = tensors.add(role, stage, range(first, first + count), float(size))
        assert indices == [*range(len(each), len(each) + count)]
        each += [Tensor(role, stage, number, float(size)) for number in range(first, first + count)]
    return tensors, each


@given(runs=runs)
def test_tensors_in_runs_are_those_written_one_by_one(runs):
    tensors, each = written_out(runs)
    assert [*tensors] == each
    assert tensors == each
    assert tensors[1:-1] == each[1:-1]
    assert [tensors[-1 - i] for i in range(len(each))] == each[::-1]


@given(runs=runs)
def test_a_plan_knows_roles_and_sizes_of_either(runs):
    tensors, each = written_out(runs)
    plans = [Plan(ops=(), tensors=of, placement=None) for of in (tensors, tuple(each))]
    assert [[*plan.roles] for plan in plans] == [[tensor.role for tensor in each]] * 2
    assert [[*plan.sizes_bytes] for plan in plans] == [[tensor.size_bytes for tensor in each]] * 2
