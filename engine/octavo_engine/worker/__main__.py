"""`python -m octavo_engine.worker`: one engine process."""

from octavo_engine.worker.parent import leave_signals_to_parent

if __name__ == "__main__":
    # Before the imports that take long: Ctrl-C in a terminal reaches the whole process group.
    leave_signals_to_parent()
    from octavo_engine.worker.process import exit_now, main

    exit_now(main())
