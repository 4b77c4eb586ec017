"""`python -m octavo_operator.api [--check] [ROOT]`: write the CRD's files, or fail when they are not current."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from octavo_operator.api import generate


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m octavo_operator.api", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is not current")
    parser.add_argument("root", nargs="?", type=Path, default=Path.cwd(), help="root of the repository")
    chosen = parser.parse_args()
    if not chosen.check:
        print("\n".join(map(str, generate.write(chosen.root))))
        return 0
    for path in (old := generate.stale(chosen.root)):
        print(f"{path} is not current: run `python -m octavo_operator.api`", file=sys.stderr)
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
