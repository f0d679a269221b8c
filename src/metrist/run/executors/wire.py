"""Messages between a run and its workers: the length in eight bytes, then a pickle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

_LENGTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """What a worker must know before its first task. The metrics are pickled apart, as reading them needs the path."""

    path: list[str]
    python_path: str | None
    folder: str
    metrics: bytes


def send(pipe: IO[bytes], data: bytes) -> None:
    """Write one message."""
    pipe.write(len(data).to_bytes(_LENGTH, "big"))
    pipe.write(data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes:
    """Read one message, or raise EOFError when the other side has gone, be it in the middle of one."""
    return _exactly(pipe, int.from_bytes(_exactly(pipe, _LENGTH), "big"))


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError("the other side has gone")
    return data
