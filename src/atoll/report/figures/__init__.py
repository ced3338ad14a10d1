"""Figures, each drawn by one function."""
