"""Published measurements beside what the simulator says.

Every number is computed when asked for; where a number was used to set a rate or an efficiency, the table says so.
"""
