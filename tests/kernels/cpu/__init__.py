"""The CPU kernels, on every variant that this machine can run."""
