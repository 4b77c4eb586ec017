"""The types of the InferenceService resource."""
