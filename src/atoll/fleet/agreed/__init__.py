"""What server and nodes share: the settings they agree on, the messages they send, and how they reach each other."""
