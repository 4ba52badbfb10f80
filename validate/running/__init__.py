"""Real runs: plans carried out by processes of one machine and compared with their simulation."""
