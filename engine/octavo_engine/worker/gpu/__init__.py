"""The GPU engine: a model on Triton kernels, and the runner that keeps its batch on the device.

It imports numpy, torch and triton, and of ours `core`, `model`, plain `sampling` and the kernels: nothing else, so that
it runs wherever these are.
"""
