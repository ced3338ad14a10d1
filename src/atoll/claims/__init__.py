"""What the papers claim, as data: one file per paper, read by `atoll.reproduce`."""
