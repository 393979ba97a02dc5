"""Device kernels, imported as `energon_dali.kernels`: one folder per operation, `reference.py` beside `kernel.py`."""
