"""What every test shares."""

import os

from hypothesis import settings

# Triton reads it once, at import: its kernels run in the interpreter here, on tensors in host memory.
os.environ["TRITON_INTERPRET"] = "1"

pytest_plugins = ["tests.cluster.pytest_plugin"]

# An example may take as long as a busy machine makes it take: how long is never what a test asserts.
settings.register_profile("octavo", deadline=None)
settings.load_profile("octavo")
