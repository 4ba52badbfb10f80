"""Where a chain of layers is cut; arithmetic alone."""
