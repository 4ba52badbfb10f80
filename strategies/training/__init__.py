"""The training strategies, one file each."""
