"""Codecs: what clients send up as fewer bytes, and what is lost by it made good in the next update."""
