"""How a sampling plan is built."""
