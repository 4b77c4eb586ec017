"""A follower's process: `python -m octavo_engine.worker.ranks`, started by `leader.Ranks`.

Exit codes: 0 after `Leave`, 1 after `RankEnds`. Without rank 0 it is killed.
"""

from __future__ import annotations

import logging
import os
import sys

import msgspec

from octavo_engine.worker.parent import die_with_parent
from octavo_engine.worker.ranks.messages import RankConfig


def main() -> int:
    """Read the configuration from standard input, load and follow. Returns the exit code."""
    from octavo_engine.worker.ranks.follower import follow
    from octavo_engine.worker.ranks.share import load_follower

    return follow(read_config(), load_follower)


def read_config() -> RankConfig:
    """Read the configuration from standard input, and from then on end with rank 0. Exits if rank 0 has ended."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    sent = sys.stdin.buffer.read()
    if not sent:
        raise SystemExit(0)
    config = msgspec.json.decode(sent, type=RankConfig)
    die_with_parent(config.parent_pid)
    logging.basicConfig(
        level=config.engine.log_level.upper(),
        format=f"%(asctime)s %(levelname)s rank {config.rank} %(name)s: %(message)s",
    )
    return config
