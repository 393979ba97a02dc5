"""Ranks that need the same batches: one of them on each node reads, and the others follow it."""
