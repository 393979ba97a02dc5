"""From a dataset to batches: workers, prefetch, saved positions, statistics, and the functions that build them."""
