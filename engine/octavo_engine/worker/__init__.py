"""The engine process: loop, executor, runner, step results."""
