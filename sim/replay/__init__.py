"""Replay: when everything in a plan happens, and the quantities that follow."""
