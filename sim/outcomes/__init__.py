"""Outcomes: a point replayed part by part, weighed, and what is known of it."""
