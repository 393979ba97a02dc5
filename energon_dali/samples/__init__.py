"""Samples, batches, and where their data was read."""
