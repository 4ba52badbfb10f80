"""Strategies, one file each, and the plans, partitions and orders that they are made of."""
