"""Networks: positions, links and speeds, turned into seconds."""
