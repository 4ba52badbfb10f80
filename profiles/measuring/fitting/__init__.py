"""Fitting: laws and rates by least squares, and devices calibrated to measured layers; without torch."""
