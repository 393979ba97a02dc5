"""Device kernels, imported as `energon_dali.kernels`: a folder per operation, and in it `kernel.py` for Triton."""
