"""Device kernels, imported as `energon_dali.kernels`: a folder per operation, with `reference.py` and `kernel.py`."""
