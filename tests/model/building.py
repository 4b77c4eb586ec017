"""Build an executable of either backend, for tests: the CPU's, and the torch reference that it is measured against."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from unittest import mock

from octavo_engine.contract import ENV_CACHE
from octavo_engine.model.checkpoint import open_checkpoint
from octavo_engine.model.digest import model_digest
from octavo_engine.worker.backends.cpu import CpuModel, build_cpu, start_pool
from octavo_engine.worker.backends.cpu_precision import choose_precision
from octavo_engine.worker.executable import Executable

BACKENDS = ("reference", "cpu")


def build(
    path: Path,
    backend: str = "cpu",
    *,
    dtype: str = "float32",
    quantization: str = "auto",
    kv_cache_dtype: str = "auto",
    threads: int = 2,
    max_model_len: int = 0,
) -> Executable:
    """Build a model whose packed weights are nobody else's business: a cache of its own, gone when it is built."""
    if backend == "reference":
        from octavo_engine.worker.backends.reference import build_reference

        return build_reference(path, dtype, quantization=quantization, threads=threads, max_model_len=max_model_len)
    with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, {ENV_CACHE: cache}):
        return build_in_cache(
            path,
            dtype=dtype,
            quantization=quantization,
            kv_cache_dtype=kv_cache_dtype,
            threads=threads,
            max_model_len=max_model_len,
        )


def build_in_cache(
    path: Path,
    *,
    dtype: str = "float32",
    quantization: str = "auto",
    kv_cache_dtype: str = "auto",
    threads: int = 2,
    max_model_len: int = 0,
) -> CpuModel:
    """Build for the CPU with the cache that the environment names."""
    checkpoint = open_checkpoint(path)
    precision = choose_precision(dtype, quantization, kv_cache_dtype, checkpoint.quantization)
    digest = model_digest(checkpoint.files)
    return build_cpu(checkpoint, digest, precision, start_pool(threads), max_model_len=max_model_len)
