"""Frames between the API process and a tokenising process: two lengths, then a MessagePack head and raw bytes.

A request body travels raw beside its head, so that 30 MB are not copied through an encoder.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from octavo_engine.server.jobs import Job, JobResult, Limits, Route

LENGTHS: Final = struct.Struct("<II")


PING: Final = LENGTHS.pack(0, 0)
"""Asks for a `Hello`: a job without a head."""


class JobHead(msgspec.Struct, frozen=True):
    """A Job without its body."""

    route: Route
    limits: Limits
    model: str


class Hello(msgspec.Struct, frozen=True):
    """The first frame of a tokenising process: it has loaded, or why it cannot (`error`)."""

    error: str = ""


_encoder = msgspec.msgpack.Encoder()
_head_decoder = msgspec.msgpack.Decoder(JobHead)
_result_decoder: msgspec.msgpack.Decoder[JobResult] = msgspec.msgpack.Decoder(JobResult)
_hello_decoder = msgspec.msgpack.Decoder(Hello)


def job_head(job: Job) -> bytes:
    """Return the lengths and the head of a job's frame; the body follows it."""
    head = _encoder.encode(JobHead(job.route, job.limits, job.model))
    return LENGTHS.pack(len(head), len(job.body)) + head


def read_job(head: bytes, body: bytes) -> Job:
    """Return the job of a frame."""
    decoded = _head_decoder.decode(head)
    return Job(decoded.route, body, decoded.limits, decoded.model)


def result_frame(result: JobResult | Hello) -> bytes:
    """Return the frame of a result."""
    head = _encoder.encode(result)
    return LENGTHS.pack(len(head), 0) + head


def read_result(head: bytes) -> JobResult:
    """Return the result of a frame."""
    return _result_decoder.decode(head)


def read_hello(head: bytes) -> Hello:
    """Return the hello of a frame."""
    return _hello_decoder.decode(head)
