"""Model loading and the reference backend."""
