"""Is it true? Closed forms, published measurements and real runs, held against the simulator."""
