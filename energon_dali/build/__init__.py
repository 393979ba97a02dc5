"""From a path and a task encoder to a tree of datasets."""
