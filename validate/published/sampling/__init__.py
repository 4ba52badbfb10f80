"""Runs on sampling that papers and released charts print, run again."""
