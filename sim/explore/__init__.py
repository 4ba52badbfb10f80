"""Explore: the points of a design space and which of them are best."""
