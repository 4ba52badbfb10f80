"""The training strategies, those that differ little in one file."""
