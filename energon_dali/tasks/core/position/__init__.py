"""Where a run is: which batches went into the weights, on which ranks, and what random numbers come next."""
