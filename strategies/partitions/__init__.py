"""Partitions: the cuts of a chain of layers; arithmetic alone."""
