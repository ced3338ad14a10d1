"""Clusterings: which clients aggregate together."""
