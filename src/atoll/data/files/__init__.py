"""Reading data sets from files."""
