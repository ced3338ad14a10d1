"""Tables as data sets: read in batches, encoded by what training rows hold, dealt out by a column of clients."""
