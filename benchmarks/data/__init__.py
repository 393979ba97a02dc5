"""Datasets for the demo and the benchmarks: crops of real photographs that ship inside registry packages."""
