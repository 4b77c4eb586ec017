"""One plain torch function per kernel: its meaning, and its test oracle."""
