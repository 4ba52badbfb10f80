"""Costs: models, devices, clusters and what work takes on them."""
