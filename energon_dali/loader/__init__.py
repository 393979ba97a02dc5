"""From a dataset to batches: worker processes, prefetch, saved positions, statistics, and the functions that build it."""
