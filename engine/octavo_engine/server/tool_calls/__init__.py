"""Tool calls: what a request may say of tools, and calls in a model's text, in the format that the model writes."""
