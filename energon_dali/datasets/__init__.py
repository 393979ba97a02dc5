"""Datasets: one per file, each an iterable whose position can be saved."""
