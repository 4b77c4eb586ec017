"""What goes wrong with a peer, said in one sentence."""

from __future__ import annotations


class PeerError(RuntimeError):
    """A peer cannot be installed, started or measured; the message is one sentence with the remedy, if there is one."""
