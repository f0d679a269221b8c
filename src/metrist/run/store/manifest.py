"""A run folder's first page: what was asked for. A note to the reader; the shards themselves say what was done."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from metrist._version import __version__

NAME = "manifest.json"
_OPENING = '{\n  "metrist":'


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A metric of the run, and the folder that holds its shards."""

    text: str
    signature: str
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Settings of the run. It holds no date and no machine, so that equal commands give equal bytes."""

    shard_size: int
    metrics: tuple[Listed, ...]
    input: tuple[str, ...] = ()

    def joined(self, older: Manifest | None) -> Manifest:
        """This manifest, with the metrics that an earlier run left in the folder listed after its own."""
        mine = {listed.text for listed in self.metrics}
        kept = [listed for listed in (older.metrics if older else ()) if listed.text not in mine]
        return Manifest(shard_size=self.shard_size, metrics=(*self.metrics, *kept), input=self.input)

    def is_foreign_to(self, older: Manifest) -> bool:
        """Whether the two read files of other names: going on would throw the older scores away."""
        mine, theirs = ({PurePath(name).name for name in one.input} for one in (self, older))
        return bool(mine and theirs) and mine.isdisjoint(theirs)

    def encode(self) -> bytes:
        """The manifest as JSON to read by eye."""
        listed = [{"text": m.text, "signature": m.signature, "folder": m.folder} for m in self.metrics]
        facts = {"metrist": __version__, "shard_size": self.shard_size, "input": list(self.input), "metrics": listed}
        return f"{json.dumps(facts, indent=2)}\n".encode("ascii")


def is_manifest(data: bytes) -> bool:
    """Whether these bytes are a manifest of ours, or the torn beginning of one."""
    text = data[: len(_OPENING)].decode("ascii", "replace")
    return _OPENING.startswith(text)


def decode(data: bytes) -> Manifest | None:
    """Read a manifest back; None for a torn one."""
    try:
        facts: Mapping[str, Any] = json.loads(data)
        return Manifest(shard_size=facts["shard_size"], metrics=_listed(facts["metrics"]), input=tuple(facts["input"]))
    except (ValueError, TypeError, KeyError):
        return None


def _listed(rows: Sequence[Mapping[str, str]]) -> tuple[Listed, ...]:
    return tuple(Listed(text=row["text"], signature=row["signature"], folder=row["folder"]) for row in rows)
