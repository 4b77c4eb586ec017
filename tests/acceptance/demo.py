"""`python -m tests.acceptance.demo`: what a newcomer does, in a fresh clone in an empty folder.

`make demo`, then curl and plain kubectl from a shell that knows nothing but what the demo printed, `make demo` again,
`make demo-down`, `make clean`; and nothing is left. Prints what each took. Raises SystemExit with what fell short.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.cluster.layout import Layout
from tests.cluster.leftovers import difference, everything, leftovers

from .running import REPOSITORY, Ran, run

CLUSTER: Final = "demo"
FIRST_SECONDS: Final = 25 * 60
SECOND_SECONDS: Final = 90
QUESTION: Final = "What is the capital of France?"
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
    url, kubeconfig = _printed("URL", printed), _printed("KUBECONFIG", printed)
    path = re.search(r"PATH=(\S+?):\$PATH", printed)
    _expect(path is not None, "the demo does not say where kubectl is")
    shell = {"KUBECONFIG": kubeconfig, "PATH": f"{path[1] if path else ''}:{os.environ['PATH']}"}
    body = json.dumps(
        {"model": "assistant", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    )
    chat = [f"{url}/chat/completions", "-H", "content-type: application/json", "-d", body]
    answer = run(["curl", "-sS", "--fail-with-body", *chat], folder=clone)
    _expect(answer.code == 0 and ANSWER in answer.output, f"curl got {answer.output[:300]}")
    kubectl = run(["kubectl", "get", "ois", "-A", "--no-headers"], folder=clone, environment=shell)
    _expect(kubectl.code == 0 and " True " in kubectl.output, f"kubectl said {kubectl.output[:300]}")


def _printed(name: str, text: str) -> str:
    found = re.search(rf"^{name}\s+(\S+)$", text, re.MULTILINE)
    if found is None:
        raise Shortfall(f"the demo printed no {name}")
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
    if Layout(CLUSTER).run.exists():
        sys.exit("a demo is running on this machine: `make demo-down` in its folder first")
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
