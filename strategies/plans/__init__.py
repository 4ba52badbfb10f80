"""The language that engine, exports and validation read: plans, their wiring and traces."""
