"""What every test shares."""

from hypothesis import settings

pytest_plugins = ["tests.cluster.pytest_plugin"]

# An example may take as long as a busy machine makes it take: how long is never what a test asserts.
settings.register_profile("octavo", deadline=None)
settings.load_profile("octavo")
