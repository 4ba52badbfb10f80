"""Templates: what strategies of one kind share, so that each defines only what is its own."""
