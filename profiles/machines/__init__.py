"""What it runs on: devices and their laws, clusters, their fabrics, hosts and collectives."""
