"""Sampling runs that papers and released charts publish, simulated."""
