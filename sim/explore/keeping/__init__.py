"""Keeping: answers on disk, what stores and files hold of a question, and what differs between two of them."""
