"""Counting: parameters, work and bytes of every layer of a network, from one pass of its real code.

``module.count`` takes any ``torch.nn.Module``; ``zoo`` the models that are shipped; ``configured`` those classes and
encoders of text by their ``config.json``.
"""
