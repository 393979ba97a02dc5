"""Datasets over several others: blends, concatenations, mixed batches."""
