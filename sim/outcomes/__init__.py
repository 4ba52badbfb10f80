"""Outcomes: a point replayed part by part, its result, and what else is known of it."""
