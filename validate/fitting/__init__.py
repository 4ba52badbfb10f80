"""Published, third-party and own measurements, made into device and cluster files; nothing here needs torch."""
