"""Kernels: the laws of devices from measurements of single kernels that others have published."""
