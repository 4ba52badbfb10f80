"""Builders of sampling plans."""
