"""Published measurements beside simulated ones.

Simulated numbers are computed on each run; where a published one set a rate or an efficiency, the table says so.
"""
