"""Backends: each turns a model into an `Executable`."""
