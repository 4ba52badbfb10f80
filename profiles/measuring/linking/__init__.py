"""Linking: the links between ranks, timed or read from logs, and the cluster file that fits them."""
