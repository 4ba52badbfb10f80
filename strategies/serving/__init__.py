"""Serving policies: one file each, found as strategies are."""
