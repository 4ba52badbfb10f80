"""Closed forms beside simulated values: whether the simulator does what the formulas say."""
