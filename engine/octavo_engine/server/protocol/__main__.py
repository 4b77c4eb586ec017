"""`python -m octavo_engine.server.protocol [--check] [ROOT]`: write docs/api.md, or fail when it is not current."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from octavo_engine.server.protocol.page import PAGE, render


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m octavo_engine.server.protocol", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is not current")
    parser.add_argument("root", nargs="?", type=Path, default=Path.cwd(), help="root of the repository")
    chosen = parser.parse_args()
    page = chosen.root / PAGE
    if not chosen.check:
        page.write_text(render())
        print(page)
        return 0
    if page.exists() and page.read_text() == render():
        return 0
    print(f"{page} is not current: run `python -m octavo_engine.server.protocol`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
