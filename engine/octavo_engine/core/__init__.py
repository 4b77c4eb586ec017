"""Sequences, block pool, scheduler, token-level stops. Imports nothing of ours."""
