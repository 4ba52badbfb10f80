"""The scenario, strategies and limits that arguments, flags and files stand for."""
