"""Builds a tree of datasets from a path and a task encoder."""
