"""The Triton kernels against their references, in Triton's interpreter; and what compiles ahead of time."""
