"""Octavo's engine: continuous batching over a paged KV cache, behind an OpenAI-compatible server."""
