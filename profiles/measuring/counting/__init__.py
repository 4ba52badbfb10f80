"""Counting: parameters, work and bytes of every layer of a network, from one pass of its real code."""
