"""Costs of work: times of layers, measured or estimated, and how far to trust them."""
