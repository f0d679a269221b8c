"""A leaderboard in a folder, which further votes update: `votes.parquet` has all votes, `board.json` the order, the
settings and the history.

Each file is written whole and renamed. An update that is cut off is completed by the same command: a vote counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from metrist.errors import RunError
from metrist.evaluate.leaderboard.votes import Votes
from metrist.evaluate.meta.dataset import Labels
from metrist.evaluate.plans import LeaderboardSettings
from metrist.io.locks import lock
from metrist.io.writer import atomic_write_bytes, encodable
from metrist.stats import Floats

_VOTES, _BOARD = "votes.parquet", "board.json"
#: Bytes of lines that are decoded at once.
_BLOCK_BYTES = 1 << 18
#: What tells two votes apart. The names of the two systems are in order.
_KEYS = ("item", "first", "second", "rater")
#: Settings on which the stored votes depend: later updates have the same.
_KEPT = ("by", "categories", "control")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The board after an update: how many votes it had, and the strength of each system, None if not determined."""

    date: str
    votes: int
    strengths: Mapping[str, float | None]

    @property
    def seconds(self) -> float:
        """The date as seconds since 1970."""
        return parse_date(self.date)


def parse_date(text: str) -> float:
    """Return the seconds since 1970 of a date, or a date with a time, in UTC if it names no zone."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise RunError(f"`date={text!r}`: expected a date such as 2026-11-19", code="invalid_value") from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


class _StoredBoard(msgspec.Struct):
    """What `board.json` says of earlier updates."""

    settings: dict[str, Any]
    history: list[Snapshot]


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Make the folder of a leaderboard, and keep other updates waiting."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("w")
    except OSError as error:
        raise RunError(f"cannot write {folder}: {error.strerror}", code="cannot_write") from error
    with file:
        lock(file, wait=True)
        yield


def resume_settings(folder: Path, settings: LeaderboardSettings) -> tuple[LeaderboardSettings, list[Snapshot]]:
    """Return the settings with those of the stored board, and its history."""
    path = folder / _BOARD
    if not path.exists():
        return settings, []
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=_StoredBoard)
        kept = {name: stored.settings[name] for name in _KEPT}
    except (OSError, msgspec.MsgspecError, KeyError) as error:
        raise RunError(f"{path} is not the board of a leaderboard: {error}", code="unreadable") from None
    for name in _KEPT:
        given = getattr(settings, name)
        if given and given != (kept[name] if name == "by" else tuple(kept[name])):
            raise RunError(
                f"`{name}`: the leaderboard in {folder} has {kept[name] or 'none'}; leave it out, or use another "
                "folder",
                code="invalid_value",
            )
    return replace(settings, **kept), stored.history


def holds_votes(source: Any) -> bool:
    """Whether a source is a table of votes, or the folder of a leaderboard."""
    if not isinstance(source, str | Path):
        return False
    path = Path(source)
    if path.is_dir():
        return (path / _VOTES).is_file()
    try:
        return path.suffix == ".parquet" and {*_KEYS[:3], "choice"} <= {*pq.read_schema(path).names}
    except (OSError, pa.ArrowException):
        return False


def read_votes(source: str | Path, settings: LeaderboardSettings) -> Votes:
    """Read the votes of a table, or those of the folder of a leaderboard, which the settings must not contradict."""
    path = Path(source)
    if path.is_dir():
        settings, path = resume_settings(path, settings)[0], path / _VOTES
    if settings.where:
        raise RunError(f"`where`: {path} holds votes without outputs: leave it out", code="invalid_value")
    table = _load(path, settings.categories, settings.control)
    return _read_table(table, settings.by or "choice", settings.categories, settings.control)


#: The choices that ratings of 0, 1 and 2 are.
_CHOICES = np.array([0.0, 1.0, -1.0])
_Name = Annotated[str, msgspec.Meta(min_length=1)]


class _VoteRow(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A row with a vote and nothing else."""

    item: _Name
    systems: tuple[_Name, _Name]
    ratings: dict[_Name, Literal[0, 1, 2]]
    rater: _Name | None = None


def read_vote_lines(path: Path, by: str | None) -> Votes | None:
    """Read a JSONL file whose rows hold a vote on one aspect each, in a fifth of the time that the reader of all files
    takes. None where a row holds anything else or repeats a vote, which is left to that reader."""
    decode = msgspec.json.Decoder(_VoteRow).decode_lines
    aspects, choice = set[str](), list[Floats]()
    items, systems, raters = list[pa.Array](), list[pa.Array](), list[pa.Array]()
    try:
        with path.open("rb") as file:
            while lines := file.readlines(_BLOCK_BYTES):
                rows = decode(b"".join(lines))
                aspects.update(aspect for row in rows for aspect in row.ratings)
                choice.append(_CHOICES[[value for row in rows for value in row.ratings.values()]])
                items.append(pa.array([row.item for row in rows], pa.string()))
                systems.append(pa.array([name for row in rows for name in row.systems], pa.string()))
                raters.append(pa.array([row.rater for row in rows], pa.string()))
    except (OSError, ValueError):
        return None
    if len(aspects) != 1 or sum(map(len, choice)) != sum(map(len, items)) or by not in (None, *aspects):
        return None
    item, both, rater = (_encode(pa.chunked_array(names)) for names in (items, systems, raters))
    pairs = np.sort(both.codes.reshape(-1, 2), axis=1)
    keys = (item.codes * len(both.names) + pairs[:, 0]) * len(both.names) + pairs[:, 1]
    keys = keys * (len(rater.names) + 1) + rater.codes
    if (pairs[:, 0] == pairs[:, 1]).any() or len(np.unique(keys)) < len(keys):
        return None
    return Votes(
        by=aspects.pop(),
        item=item.codes,
        items=item.names,
        first=both.codes[::2],
        second=both.codes[1::2],
        systems=both.names,
        rater=rater,
        choice=np.concatenate(choice),
    )


def _load(path: Path, categories: Iterable[str], control: Iterable[str]) -> pa.Table:
    """A table of votes, with the columns of the folder of a leaderboard."""
    try:
        table = pq.read_table(path)
        if "rater" not in table.column_names:
            table = table.append_column("rater", pa.nulls(len(table), pa.string()))
        table = pa.table(
            {name: table[name].cast(pa.string()) for name in _KEYS}
            | {"choice": table["choice"].cast(pa.float64())}
            | {name: table[name].cast(pa.string()) for name in categories}
            | {name: table[name].cast(pa.float64()) for name in control}
        )
    except (OSError, KeyError, pa.ArrowException) as error:
        raise RunError(f"{path} is no table of such votes: {error}", code="unreadable") from None
    missing = next((name for name in (*_KEYS[:3], "choice", *control) if table[name].null_count), None)
    if missing or not (np.abs(table["choice"].to_numpy()) <= 1).all():
        wrong = f"{missing!r} is empty in some rows" if missing else "'choice' must lie between 1 and -1"
        raise RunError(f"{path}: {wrong}", code="invalid_value")
    return table


def add_votes(folder: Path, votes: Votes, settings: LeaderboardSettings) -> Votes:
    """Store votes and return all. A vote replaces a stored one of the same rater on the same item and systems."""
    if votes.weight is not None:
        raise RunError("votes with sampling weights cannot be added to a folder", code="invalid_value")
    table, path = _make_table(votes), folder / _VOTES
    if not (folder / _BOARD).exists():
        if path.exists():
            raise RunError(
                f"{folder / _BOARD} is missing, which says what the votes beside it are about: restore it, or name "
                "another folder",
                code="missing_file",
            )
        # Before the votes: if this update is cut off, no votes of another kind are added to them.
        write_board(folder, {"history": []}, settings)
    if path.exists():
        stored = _load(path, votes.columns, votes.covariates)
        keys = np.zeros(len(stored) + len(table), np.int64)
        for name in _KEYS:
            labels = _encode(pa.chunked_array([*stored[name].chunks, *table[name].chunks], pa.string()))
            keys = keys * (len(labels.names) + 1) + labels.codes
        is_replaced = np.isin(keys[: len(stored)], keys[len(stored) :])
        table = pa.concat_tables([stored.filter(pa.array(~is_replaced)), table])
    with atomic_write_bytes(path) as file:
        pq.write_table(table, file, compression="zstd")
    return replace(_read_table(table, votes.by, votes.columns, votes.covariates), notes=votes.notes)


def add_snapshot(history: list[Snapshot], snapshot: Snapshot) -> tuple[Snapshot, ...]:
    """Return the history with a snapshot, which replaces one of the same date, in the order of the dates."""
    others = [own for own in history if own.seconds != snapshot.seconds]
    return tuple(sorted([*others, snapshot], key=lambda own: own.seconds))


def write_board(folder: Path, board: Mapping[str, Any], settings: LeaderboardSettings) -> None:
    """Write the order and the history, with the settings that later updates share."""
    kept = {name: getattr(settings, name) for name in _KEPT}
    with atomic_write_bytes(folder / _BOARD) as file:
        file.write(msgspec.json.format(msgspec.json.encode({**board, "settings": kept}), indent=2))


def _make_table(votes: Votes) -> pa.Table:
    """The votes with the first of both systems by name on the first side."""
    place = np.argsort(np.argsort(np.array(votes.systems, np.str_)))
    turned = place[votes.first] > place[votes.second]
    sign = np.where(turned, -1.0, 1.0)
    columns = {
        "item": _decode(Labels(codes=votes.item, names=votes.items)),
        "first": _decode(Labels(codes=np.where(turned, votes.second, votes.first), names=votes.systems)),
        "second": _decode(Labels(codes=np.where(turned, votes.first, votes.second), names=votes.systems)),
        "rater": _decode(votes.rater),
        "choice": pa.array(sign * votes.choice),
        **{name: _decode(labels) for name, labels in votes.columns.items()},
        **{name: pa.array(sign * values) for name, values in votes.covariates.items()},
    }
    return pa.table(columns)


def _read_table(table: pa.Table, by: str, categories: Iterable[str], control: Iterable[str]) -> Votes:
    items = _encode(table["item"])
    systems = _encode(pa.chunked_array([*table["first"].chunks, *table["second"].chunks], pa.string()))
    return Votes(
        by=by,
        item=items.codes,
        items=items.names,
        first=systems.codes[: len(table)],
        second=systems.codes[len(table) :],
        systems=systems.names,
        rater=_encode(table["rater"]),
        choice=table["choice"].to_numpy(),
        columns={name: _encode(table[name]) for name in categories},
        covariates={name: table[name].to_numpy() for name in control},
    )


def _decode(labels: Labels) -> pa.Array:
    codes = pa.array(labels.codes.astype(np.int32), mask=labels.codes < 0)
    names = pa.array([encodable(name) for name in labels.names], pa.string())
    return pa.DictionaryArray.from_arrays(codes, names).cast(pa.string())


def _encode(column: pa.ChunkedArray) -> Labels:
    encoded = column.combine_chunks().dictionary_encode()
    codes = pc.fill_null(encoded.indices, -1).to_numpy().astype(np.intp)
    return Labels(codes=codes, names=tuple(encoded.dictionary.to_pylist()))
