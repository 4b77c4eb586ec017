"""lm-eval's log-likelihoods, over our HTTP API and by its own `transformers` backend, on the same float32 weights.

lm-eval lives in an environment of its own, which sees this one's packages: `judge` runs there, everything else here.
`python -m tests.acceptance.likelihoods` prints the comparison.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path
from typing import Final, NamedTuple

from octavo_engine.bench.peers.environment import peers_root
from octavo_engine.bench.peers.model_files import ModelFiles, make_safetensors
from octavo_engine.model.files import cache_root
from octavo_engine.model.pull import pull
from tests.server.launch import serving

LM_EVAL: Final = "lm_eval==0.4.13"
MODEL: Final = "bundled://smollm2-135m-instruct"
TOLERANCE: Final = 1e-3
PAIRS: Final = (
    ("The capital of France is", " Paris"),
    ("The capital of France is", " Lyon, a city on the Rhône"),
    ("Question: What do plants need to grow?\nAnswer:", " Water, light and air."),
    ("Question: What do plants need to grow?\nAnswer:", " Granite."),
    ("def add(a, b):\n    return", " a + b"),
    ("1, 1, 2, 3, 5, 8,", " 13, 21, 34"),
    ("Roses are red,\nviolets are blue,", "\nsugar is sweet, and so are you."),
    ("Il fait froid en", " hiver ❄️, et chaud en été"),
    ("", "Once upon a time there was a"),
    ("The quick brown fox jumps over the lazy dog. " * 20, "The quick brown fox"),
    ("A list of colours: red, green,", " blue"),
    ("Two plus two is", " five"),
)
"""Context and continuation, as multiple choice and perplexity tasks ask for."""


class Likelihood(NamedTuple):
    """A continuation's log-probability, and whether greedy decoding would have written it."""

    logprob: float
    greedy: bool


class Comparison(NamedTuple):
    """What both backends said of each pair."""

    served: list[Likelihood]
    expected: list[Likelihood]

    @property
    def largest_difference(self) -> float:
        """Of two log-likelihoods of the same pair."""
        return max(abs(ours.logprob - theirs.logprob) for ours, theirs in zip(self.served, self.expected, strict=True))

    @property
    def greedy_agrees(self) -> bool:
        """Whether both say of every pair alike that it is what greedy decoding writes."""
        return [ours.greedy for ours in self.served] == [theirs.greedy for theirs in self.expected]


def compare() -> Comparison:
    """Serve the weights in float32, and let lm-eval score the pairs both ways. Raises CalledProcessError."""
    folder = make_safetensors(ModelFiles(pull(MODEL), peers_root() / "models"))
    python = _environment()
    with (
        tempfile.TemporaryDirectory() as place,
        serving(Path(place), str(folder), "--dtype", "float32", name="model") as server,
    ):
        asked = json.dumps({"url": f"{server.url}/v1/completions", "folder": str(folder), "pairs": PAIRS})
        ended = subprocess.run(
            [str(python), "-m", "tests.acceptance.likelihoods_judge"],
            input=asked, stdout=subprocess.PIPE, check=True, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
    found = json.loads(ended.stdout.splitlines()[-1])
    return Comparison(*([Likelihood(*each) for each in found[name]] for name in ("served", "expected")))


def _environment() -> Path:
    """Return the interpreter of lm-eval's environment, made if it is not there. Raises CalledProcessError."""
    folder = cache_root() / "lm-eval" / LM_EVAL.replace("==", "-")
    python = folder / "bin" / "python"
    if (folder / "complete").is_file():
        return python
    venv.create(folder, with_pip=True, clear=True)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    # What this environment has (torch above all) need not be fetched again.
    (site / "outer.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    install = [
        str(python),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        f"{LM_EVAL.replace('==', '[api,hf]==')}",
    ]
    subprocess.run(install, check=True)
    (folder / "complete").touch()
    return python


def main() -> int:
    """Print both likelihoods of each pair; exit 1 if they differ."""
    found = compare()
    for (context, continuation), ours, theirs in zip(PAIRS, found.served, found.expected, strict=True):
        print(f"{ours.logprob:10.4f} {theirs.logprob:10.4f} {context[-30:]!r} {continuation!r}")
    print(f"largest difference {found.largest_difference:.1e}; greedy agrees: {found.greedy_agrees}")
    return 0 if found.largest_difference <= TOLERANCE and found.greedy_agrees else 1


if __name__ == "__main__":
    sys.exit(main())
