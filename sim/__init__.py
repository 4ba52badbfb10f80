"""When it all happens, and which choice is best: engine, memory, metrics, sweep, command line."""
