"""The peers' bench, with no peer installed."""
