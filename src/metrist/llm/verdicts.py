"""What becomes of one attempt to ask a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from metrist.llm.talk import Completion, Usage


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server sent, whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why nothing whole came back. 'unreachable': not even a connection could be made; 'untrusted': never will be."""

    reason: str
    kind: Literal["unreachable", "untrusted", "broken"] = "broken"


@dataclass(frozen=True, slots=True)
class Answered:
    """The server answered; its completion may still be a failure of that record (a filter, an empty answer)."""

    completion: Completion


@dataclass(frozen=True, slots=True)
class Again:
    """Worth another attempt, after `wait` seconds at least. `crowded`: only too early, and not counted as a fault."""

    reason: str
    wait: float = 0.0
    crowded: bool = False
    unreachable: bool = False
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Refused:
    """The server takes no such field; without it the request may do."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """This record cannot be answered, whenever asked."""

    reason: str
    finish: Literal["stop", "length", "filter", "other"] = "other"
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Fatal:
    """No record can be answered."""

    reason: str


Verdict = Answered | Again | Refused | Failed | Fatal
