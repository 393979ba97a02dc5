"""Datasets that make one element of several: batches, groups, packs."""
