"""Clients on other machines: what a fleet is, what is sent, and how replies are checked."""
