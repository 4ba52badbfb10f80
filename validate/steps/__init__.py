"""Steps on one device: predicted, then measured."""
