"""Codecs: compression of clients' updates, with error feedback."""
