"""A node's side: what its owner lets it do, what it keeps, and how it answers."""
