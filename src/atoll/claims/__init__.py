"""What the papers claim, as data: one file a paper, read by `atoll.reproduce`."""
