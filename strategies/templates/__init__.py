"""Templates: what strategies of one kind share, so that each says only what is its own."""
