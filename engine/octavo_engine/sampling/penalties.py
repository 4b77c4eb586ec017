"""What presence, frequency and repetition penalties look at, as vLLM and OpenAI define them.

Repetition looks at prompt and output, presence and frequency at the output alone. The counts are a function of the
tokens, so they are rebuilt whenever a sequence is admitted (again): a preemption changes nothing.
"""

from __future__ import annotations

from octavo_kernels.cpu._native import TokenCounts

__all__ = ["TokenCounts"]
