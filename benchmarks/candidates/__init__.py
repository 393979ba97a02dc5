"""The candidates. Each module has `measure(task)`; `python -m benchmarks.candidates` runs one in its own process.

These modules also run in the environment of megatron-energon: at the top they import only the standard library,
numpy, torch and each other.
"""
