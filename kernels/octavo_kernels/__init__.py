"""Octavo's kernels: what they mean (reference), and how they run (triton, cpu)."""
