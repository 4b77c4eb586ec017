"""`python -m octavo_engine.worker.ranks`: one follower."""

from octavo_engine.ipc.signals import leave_to_parent

if __name__ == "__main__":
    # Before the imports that take long: Ctrl-C in a terminal reaches the whole process group.
    leave_to_parent()
    from octavo_engine.worker.process import exit_now
    from octavo_engine.worker.ranks.process import main

    exit_now(main())
