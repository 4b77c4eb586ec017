"""`python -m tests.acceptance.demo`: what a newcomer does, in a fresh clone in an empty folder.

`make demo`, then curl and plain kubectl from a shell that knows nothing but what the demo printed, `make demo` again,
`make demo-down`, `make clean`; and nothing is left. Prints what each took. Raises SystemExit with what fell short.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.cluster.layout import Layout
from tests.cluster.leftovers import cluster_names, difference, everything, leftovers

from .running import REPOSITORY, Ran, run

CLUSTER: Final = "demo"
FIRST_SECONDS: Final = 25 * 60
SECOND_SECONDS: Final = 90
SERVICE: Final = "assistant"
ANSWER: Final = "Paris"


class Shortfall(Exception):
    """What was promised and not kept."""


def walk(clone: Path, environment: Mapping[str, str], distclean: bool) -> dict[str, Any]:
    """Walk through it; return seconds by step, rounded."""
    before = everything()
    facts: dict[str, Any] = {}
    first = _make("demo", clone, environment)
    facts["first"] = round(first.seconds)
    _as_a_user(first.output, clone)
    second = _make("demo", clone, environment)
    facts["second"] = round(second.seconds)
    _as_a_user(second.output, clone)
    facts["down"] = round(_make("demo-down", clone, environment).seconds)
    _expect(not leftovers(CLUSTER), f"demo-down left {leftovers(CLUSTER)}")
    facts["clean"] = round(_make("clean", clone, environment).seconds)
    status = run(["git", "status", "--porcelain", "--ignored"], folder=clone).output
    _expect(status == "", f"make clean left in the tree:\n{status}")
    if distclean:
        _make("distclean", clone, environment)
        cache = Path(environment["XDG_CACHE_HOME"]) / "octavo"
        _expect(not cache.exists(), f"make distclean left {cache}")
    left = difference(before, everything())
    _expect(not left, f"left on the machine: {left}")
    _expect(second.seconds <= SECOND_SECONDS, f"the second make demo took {second.seconds:.0f} s")
    _expect(first.seconds <= FIRST_SECONDS, f"the first make demo took {first.seconds:.0f} s")
    return facts


def _make(target: str, clone: Path, environment: Mapping[str, str]) -> Ran:
    ran = run(["make", target], folder=clone, environment=environment)
    _expect(ran.code == 0, f"make {target} ended with {ran.code}")
    return ran


def _as_a_user(printed: str, clone: Path) -> None:
    """Do what the demo says one may try, in a shell of one's own: the chat's answer, curl, kubectl."""
    _expect(ANSWER in printed, "the demo printed no answer")
    url, kubeconfig = _printed(r"^URL\s+(\S+)$", printed), _printed(r"^KUBECONFIG\s+(\S+)$", printed)
    models = _shell(f"curl -sS --fail-with-body {url}/models", clone)
    _expect(SERVICE in models, f"{url}/models answered {models[:300]}")
    answer = _shell(_printed(r"^  (curl [^']*'[^']*'[^']*'[^']*')$", printed), clone)
    _expect(ANSWER in answer, f"curl got {answer[:300]}")
    export = _printed(r"^  (export KUBECONFIG=.*)$", printed)
    _expect(kubeconfig in export, f"the printed KUBECONFIG is not the one of '{export}'")
    listed = _shell(f"{export} && {_printed(r'^  (kubectl get ois .*?)(?: -w)?$', printed)}", clone)
    _expect(re.search(rf"^{SERVICE}\s.*\sTrue\s", listed, re.MULTILINE) is not None, f"kubectl said {listed[:300]}")


def _shell(command: str, clone: Path) -> str:
    """Run a printed command as a person would, in a shell of one's own."""
    ran = run(["bash", "-c", command], folder=clone)
    _expect(ran.code == 0, f"'{command}' ended with {ran.code}: {ran.output[:300]}")
    return ran.output


def _printed(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise Shortfall(f"the demo printed nothing like {pattern}")
    return found[1]


def _expect(kept: bool, otherwise: str) -> None:
    if not kept:
        raise Shortfall(otherwise)


def main() -> None:
    """Clone, walk, remove the clone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=REPOSITORY, help="the repository to clone")
    parser.add_argument("--own-caches", action="store_true", help="begin with nothing cached; make distclean, too")
    parser.add_argument("--json", type=Path, help="write the timings here, too")
    arguments = parser.parse_args()
    if CLUSTER in cluster_names():
        sys.exit("a demo runs on this machine: end it first (make demo-down)")
    folder = Path(tempfile.mkdtemp(prefix="octavo-fresh-", dir="/var/tmp"))
    try:
        clone = folder / "octavo"
        if run(["git", "clone", "--quiet", str(arguments.source), str(clone)]).code:
            sys.exit(f"cannot clone {arguments.source}")
        own = {"XDG_CACHE_HOME": str(folder / "cache"), "OCTAVO_CACHE": ""}
        facts = walk(clone, own if arguments.own_caches else {}, arguments.own_caches)
    except Shortfall as error:
        if Layout(CLUSTER).run.exists():
            run(["make", "demo-down"], folder=folder / "octavo")
        sys.exit(f"fell short: {error}")
    finally:
        shutil.rmtree(folder)
    for name, value in facts.items():
        print(f"{name:8} {value} s")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({name: f"{value} s" for name, value in facts.items()}))


if __name__ == "__main__":
    main()
