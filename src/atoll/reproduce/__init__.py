"""The papers' figures and tables, run again and compared with the papers' claims."""
