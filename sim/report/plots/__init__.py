"""Plots of results, sweeps and traces."""
