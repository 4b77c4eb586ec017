"""The backends every contract test of the runner runs over, each a function that makes a fresh executable."""

from octavo_engine.worker.backends.scripted import build_scripted

BACKENDS = {"scripted": lambda: build_scripted("scripted://?eos=0")}
