"""The samplers, those that differ little in one file."""
