"""The parts of `benchmarks/gpu.py`: one section of its report each, and what they share."""
