"""Replay: when everything in a plan happens, and what it amounts to."""
