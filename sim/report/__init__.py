"""Report: tables, rankings and plots."""
