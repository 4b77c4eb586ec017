"""octavo bench."""
