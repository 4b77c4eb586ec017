"""ModelSpec, weights, QTensor, name maps."""
