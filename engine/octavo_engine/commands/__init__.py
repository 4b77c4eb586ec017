"""What the `octavo` command does, one module per subcommand; imported when it runs."""
