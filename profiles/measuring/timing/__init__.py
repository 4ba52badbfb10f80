"""Timing: every layer of a model on this machine, in place."""
