"""`python -m benchmarks.demo`: a dataset of real photographs, or your own, through every decoder of this machine."""
