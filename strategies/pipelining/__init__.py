"""How a training plan is built."""
