"""Huge prompts beside probes and a stream: nobody notices (B23, B33 d/e). `python -m tests.server.overload` tells."""

from __future__ import annotations

from pathlib import Path

from tests.server.launch import serving
from tests.server.overload import bound_bytes, measure

URI = "scripted://?step=100ms&max_len=65536&blocks=8192&eos=0"


def test_huge_prompts_hold_up_neither_probes_nor_streams(tmp_path: Path) -> None:
    with serving(tmp_path, URI, "--drain-timeout", "1", "--drain-propagation", "0") as server:
        figures = measure(server, bound_bytes(server, URI), probes=120, quiet_seconds=3)
    assert set(figures.answers) == {"400"}, "tokenised, then refused as too long"
    # A probe is three wake-ups (server, client, and the engine's tick between them) and a chunk is two: what the
    # machine did meanwhile to a process that only slept is not the server's doing.
    delay = figures.machine_delay_max
    assert figures.probe_p90 <= 0.1, figures
    assert figures.probe_max <= 0.1 + 3 * delay, figures
    assert figures.loaded_itl_p99 <= 2 * figures.quiet_itl_p99 + 2 * delay, figures
    assert figures.memory_growth_megabytes < 300, figures
