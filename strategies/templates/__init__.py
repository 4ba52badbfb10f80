"""Templates of strategies of one kind, so that each defines only what sets it apart."""
