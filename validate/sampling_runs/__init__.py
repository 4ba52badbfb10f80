"""Sampling for real: plans of samplers carried out on a small transformer, their images beside those of one device."""

from validate.sampling_runs.command import add_sample_parser

__all__ = ["add_sample_parser"]
