"""Reports: one HTML file that says and draws what a sweep or a run came to; it needs no network."""
