"""Templates: what strategies of one family have in common, one level deep."""
