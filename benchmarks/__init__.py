"""Registered workloads that compare with other loaders, the demo, and the images that both use."""
