"""What every test shares."""

pytest_plugins = ["tests.cluster.pytest_plugin"]
