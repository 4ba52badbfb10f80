"""Published measurements beside numbers that are simulated anew, or a reason why there are none."""
