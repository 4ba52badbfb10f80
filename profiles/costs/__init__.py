"""What it costs: times of layers, measured or estimated, and how far they are to be trusted."""
