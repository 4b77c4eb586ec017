"""`python -m octavo_engine.worker`: one engine process."""

from octavo_engine.worker.process import exit_now, main

if __name__ == "__main__":
    exit_now(main())
