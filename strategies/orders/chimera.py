"""Chimera: the order of one backbone in two directions.

Units of as many micro-batches as positions follow one another, half of each unit down and half up. Were forwards
and backwards one slot long, the i-th of a unit in its direction would be on stage s in slot s + 2i, and back there
in slot 2P - 1 - s + 2i: never two on one position, each input ready in the slot before, and room for the next unit
2P slots later.

Source: Li and Hoefler, Chimera, 2021, sections 3.1 and 3.5 (direct concatenation).
"""

from profiles.errors import InfeasibleError
from strategies.plans.actions import BACKWARD, FORWARD, Rows, StageAction, passes_of


def chimera_order(degree: int, micro_batches: int) -> Rows:
    """Return the order of each position; stages 0 to P - 1 go down, P to 2P - 1 up. The last unit may be smaller.

    Raises:
        InfeasibleError: the degree or the number of micro-batches is odd.
    """
    check_halves(degree, micro_batches)
    half, unit = micro_batches // 2, degree // 2
    shifts = [2 * (i // unit * degree + i % unit) for i in range(half)]
    slots: list[list[tuple[int, StageAction]]] = [[] for _ in range(degree)]
    for number in range(2 * degree):
        way, stage = divmod(number, degree)
        row = slots[degree - 1 - stage if way else stage]
        numbers = range(way * half, way * half + half)
        for kind, slot in ((FORWARD, stage), (BACKWARD, 2 * degree - 1 - stage)):
            row += zip([slot + shift for shift in shifts], passes_of(number, kind, numbers), strict=True)
    return tuple(tuple(action for _, action in sorted(row)) for row in slots)


def check_halves(degree: int, micro_batches: int) -> None:
    """Refuse what two directions of one backbone cannot share."""
    for name, value in (("pipeline_degree", degree), ("micro_batches", micro_batches)):
        if value % 2:
            raise InfeasibleError(
                f"{name}({value}) / 2 directions of one backbone = {value / 2:g} is not whole",
                f"an odd {name} in two directions",
            )
