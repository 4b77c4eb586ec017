"""The demonstration: a real cluster on this machine, Octavo installed in it, one InferenceService that answers."""
