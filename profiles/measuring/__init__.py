"""Measuring: how profiles are made, by counting models, timing layers and links, and fitting files to the results.

``sim measure`` is its command; it alone imports torch, which ``pip install 'diffusim[measure]'`` brings.
"""
