"""Machines: devices and their laws, clusters, their fabrics, hosts and collectives."""
