"""Times of layers and links, measured on the user's own machines."""
