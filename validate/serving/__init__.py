"""Serving compared with published servers, and with real worker processes."""
