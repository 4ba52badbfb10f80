"""In which order passes run; arithmetic alone."""
