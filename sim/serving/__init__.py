"""Serving: requests that arrive, queue and run on a fleet of GPUs."""
