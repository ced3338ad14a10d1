"""Reading run folders back."""
