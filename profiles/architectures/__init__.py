"""Architectures: models, their components and layers, and the kernels that each layer runs."""
