"""Is it true? Counts, closed forms, published measurements and real runs, held against the simulator.

Runs from the checkout, as ``python -m validate``; the only package that imports torch.
"""
