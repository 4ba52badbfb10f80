"""Sampling: plans carried out on a small transformer, its images and bytes compared."""
