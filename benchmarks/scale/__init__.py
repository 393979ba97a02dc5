"""Benchmarks of large datasets: made-up indices of up to 100 million samples."""
