"""The papers' figures and tables, run again, and held against what the papers say of them."""
