"""The order in which passes run; pure arithmetic."""
