"""Bounds: seconds and bytes that no run can undercut."""
