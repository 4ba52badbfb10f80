"""Device and cluster files fitted to published, third-party and own measurements; without torch."""
