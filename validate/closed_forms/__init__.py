"""Closed forms beside simulated values: whether the simulator agrees with the formulas."""
