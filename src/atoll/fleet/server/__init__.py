"""The server's side: asking nodes, checking their replies, planning and executing on a fleet."""
