"""Launching: the flags, configuration or code that starts a point in a runtime."""
