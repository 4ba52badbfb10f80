"""Is it true? Closed forms, published measurements and real runs, held against the simulator.

Runs from the checkout, as ``python -m validate``.
"""
