"""Profiling and calibration: layer times as measured, device rates fitted to them, steps predicted and measured."""
