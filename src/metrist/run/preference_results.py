"""The tables of `metrist prefer`: systems by their win rates, comparators by how they chose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from metrist.report.cells import Count, Estimate, Number, Share
from metrist.report.tables import Column, Table

if TYPE_CHECKING:
    pass
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.io import atomic_write
from metrist.io.writer import check_distinct
from metrist.metrics.comparator import Comparator, Judgment
from metrist.metrics.llm_metric import merge_usage
from metrist.ratings import Choice
from metrist.records import Pair
from metrist.run.flat_file import check_writable, flat_suffix
from metrist.run.results import DRAWS, usual_reason
from metrist.run.run_folder import folder_name
from metrist.run.shard_file import INCOMPLETE, KIND, read_failure
from metrist.stats.preferences import (
    CHOICES,
    FIRST,
    SECOND,
    TIE,
    Preferences,
    accuracy,
    bradley_terry,
    chance_accuracy,
    macro_f1,
    win_rates,
)
from metrist.stats.resampling import pooled_interval


def system_table(rows: Sequence[WinRate], notes: Sequence[str]) -> Table:
    """One row a comparator and system; a column with strengths where any is known."""
    with_failures = any(row.failed for row in rows)
    failed = ["failed", "if lost", "if won"] if with_failures else []
    names = ["won", "tied", "lost", *failed, "strength"]
    return Table(
        title="Win rates",
        columns=[Column("comparator"), Column("system"), *(Column(name, "right") for name in ("win rate", *names))],
        rows=[_system(row, with_failures) for row in rows],
        notes=(
            "A tie is half a win. Strength is Bradley and Terry's with ties, on the log scale, ± its standard error.",
            *_undetermined(rows),
            *notes,
        ),
    )


def _system(row: WinRate, with_failures: bool) -> list[Any]:
    failed = [Count(row.failed), Number(row.worst), Number(row.best)] if with_failures else []
    strength = None if math.isnan(row.strength) else f"{row.strength:+.2f} ± {row.error:.2f}"
    counts = [Count(row.won), Count(row.tied), Count(row.lost)]
    return [row.comparator, row.system, Estimate(row.value, row.low, row.high), *counts, *failed, strength]


def _undetermined(rows: Sequence[WinRate]) -> list[str]:
    without = list(dict.fromkeys(row.comparator for row in rows if math.isnan(row.strength)))
    return [
        f"{comparator}: strengths are not determined: some systems never lost to others, or never won, ties aside"
        for comparator in without
    ]


def comparator_table(rows: Sequence[Comparing], agreements: Sequence[Agreement]) -> Table:
    """One row a comparator, with a column of accuracy for each aspect that people chose by."""
    aspects = list(dict.fromkeys(one.aspect for one in agreements))
    found = {(one.comparator, one.aspect): one for one in agreements}
    names = ["pairs", "judged", "ties", "flips", *(f"as people: {aspect}" for aspect in aspects)]
    cost = any("cost" in row.usage for row in rows)
    return Table(
        title="Comparators",
        columns=[
            Column("comparator"),
            *(Column(name, "right") for name in [*names, *(["US dollars"] if cost else [])]),
        ],
        rows=[
            [
                *(row.comparator, Count(row.pairs), Share(row.judged / row.pairs), Share(row.ties)),
                Estimate(row.flips, row.flips_low, row.flips_high),
                *(_agreed(found[row.comparator, aspect]) for aspect in aspects),
                *([row.usage.get("cost")] if cost else []),
            ]
            for row in rows
        ],
        notes=[*_flip_note(rows), *(note for aspect in aspects for note in _as_people(aspect, agreements))],
    )


def _agreed(one: Agreement) -> Estimate:
    return Estimate(one.value, one.low, one.high)


def _as_people(aspect: str, agreements: Sequence[Agreement]) -> list[str]:
    """On how many pairs, and what a coin would reach there; for each comparator where they judged different ones."""
    told = [one for one in agreements if one.aspect == aspect and one.pairs]
    if not told:
        return []
    share = f"As people, {aspect}: the share of pairs where the comparator chose as most people did"
    if len({(one.pairs, one.chance) for one in told}) == 1:
        return [f"{share}, of {told[0].pairs:,}; a coin would reach {told[0].chance:.3f}."]
    each = ", ".join(f"{one.comparator} {one.pairs:,} and {one.chance:.3f}" for one in told)
    return [f"{share}. Comparators judged different pairs; how many, and what a coin would reach on them: {each}."]


def _flip_note(rows: Sequence[Comparing]) -> list[str]:
    known = any(not math.isnan(row.flips) for row in rows)
    return [
        "Flips: the share of pairs where the choice changed with the order of the two; such a pair is a tie."
    ] * known


# What comparators said of pairs, and what it comes to: win rates, strengths, flips, agreement with people.


_SIGNS: Mapping[Choice, int] = {"first": FIRST, "second": SECOND, "tie": TIE}
#: An item and two of its systems.
Key = tuple[str, str, str]
_Floats = NDArray[np.float64]
_Codes = NDArray[np.intp]


class WinRate(NamedTuple):
    """A system's share of its judged pairs that it won, a tie being half a win, with its interval over items. `worst`
    and `best` are what it would be if the system had lost or won all pairs that failed. `strength` is Bradley and
    Terry's, on the log scale, with its standard error; NaN where the choices do not determine it."""

    comparator: str
    system: str
    value: float
    low: float
    high: float
    won: int
    tied: int
    lost: int
    failed: int
    worst: float
    best: float
    strength: float
    error: float


class Comparing(NamedTuple):
    """How a comparator chose: shares of the pairs that it judged. `flips` are choices that changed with the order in
    which the two were shown, NaN for a comparator that does not know."""

    comparator: str
    pairs: int
    judged: int
    ties: float
    flips: float
    flips_low: float
    flips_high: float
    usage: Mapping[str, Any]


class Agreement(NamedTuple):
    """How often a comparator chose as most people did, on the pairs that both judged; `chance` is a coin's accuracy."""

    comparator: str
    aspect: str
    pairs: int
    value: float
    low: float
    high: float
    chance: float
    f1: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Preferred:
    """The judgments of a call of `prefer`, by the comparator's text; one per pair of `keys` (item, first system, second
    system). `human` has what most people chose, by aspect, None where nobody was asked."""

    keys: Sequence[Key]
    comparators: tuple[Comparator, ...]
    judgments: Mapping[str, Sequence[Judgment]]
    signatures: Mapping[str, str]
    human: Mapping[str, Sequence[Choice | None]]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"Preferred({len(self):,} pairs, comparators: {', '.join(self.judgments)})"

    @property
    def systems(self) -> tuple[str, ...]:
        """All systems of the pairs, as they come."""
        return tuple(dict.fromkeys(system for _, *both in self.keys for system in both))

    def win_rates(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> list[WinRate]:
        """Each system's win rate by each comparator."""
        return [
            row
            for comparator in self.judgments
            for row in self._win_rates(comparator, draws, np.random.default_rng(seed), confidence)
        ]

    def comparing(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> list[Comparing]:
        """How each comparator chose."""
        return [self._comparing(text, draws, np.random.default_rng(seed), confidence) for text in self.judgments]

    def agreement(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> list[Agreement]:
        """How far each comparator chose as people did, by each aspect that they chose by."""
        return [
            self._agreement(text, aspect, draws, np.random.default_rng(seed), confidence)
            for text in self.judgments
            for aspect in self.human
        ]

    def table(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> Table:
        """Win rates of systems."""
        about = f"{confidence:.0%} intervals: {draws:,} bootstrap resamples of the items, seed {seed}"
        return system_table(self.win_rates(draws, seed, confidence), (about, *self.notes, *self._observations()))

    def comparator_table(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> Table:
        """How each comparator chose, and how far as people did."""
        return comparator_table(self.comparing(draws, seed, confidence), self.agreement(draws, seed, confidence))

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain row per pair and comparator, in that order, as in a file of preferences."""
        for number, (item, first, second) in enumerate(self.keys):
            for text, judgments in self.judgments.items():
                yield {"item": item, "systems": [first, second], **as_row(text, judgments[number])}

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a .jsonl file (.gz, .xz, .zst), whole or not at all."""

        write_rows(path, self.rows())

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame."""
        try:
            import pandas
        except ImportError:
            raise RunError("to_pandas() needs pandas: pip install pandas") from None
        return pandas.DataFrame(list(self.rows()))

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def _observations(self) -> list[str]:
        said = [remark for one in self.comparators for remark in one.observations(self.judgments[one.text])]
        return [*said, *(note for text in self.judgments for note in self._failures(text))]

    def _failures(self, comparator: str) -> list[str]:
        reasons = [found.failure for found in self.judgments[comparator] if found.failure is not None]
        if not reasons:
            return []
        return [f"{comparator}: {len(reasons):,} of {len(self):,} pairs not judged, {usual_reason(reasons)}"]

    def _judged(self, comparator: str) -> tuple[_Codes, list[Choice]]:
        """The numbers of the pairs that it judged, and its choices."""
        found = [(i, one.preference) for i, one in enumerate(self.judgments[comparator]) if one.preference is not None]
        return np.array([i for i, _ in found], dtype=np.intp), [choice for _, choice in found]

    def _codes(self) -> tuple[_Codes, _Codes, _Codes]:
        """Item, first and second system of each pair, as numbers."""
        items = {item: i for i, item in enumerate(dict.fromkeys(item for item, *_ in self.keys))}
        systems = {system: i for i, system in enumerate(self.systems)}
        rows = [(items[item], systems[first], systems[second]) for item, first, second in self.keys]
        item, first, second = np.array(rows, dtype=np.intp).reshape(-1, 3).T
        return item, first, second

    def _win_rates(self, text: str, draws: int, rng: np.random.Generator, confidence: float) -> list[WinRate]:
        item, first, second = self._codes()
        at, choices = self._judged(text)
        signs = np.array([_SIGNS[choice] for choice in choices], dtype=np.intp)
        chosen = Preferences.of(item[at], first[at], second[at], signs, len(self.systems))
        rates = win_rates(chosen, draws, rng, confidence)
        strength, error = _strengths(chosen)
        failed = np.delete(np.stack([first, second], axis=1), at, axis=0)
        lost = np.bincount(failed.ravel(), minlength=len(self.systems)).tolist()
        rows = []
        for code, system in enumerate(self.systems):
            won, tied, beaten = _record(chosen, code)
            value, low, high = (float(column[code]) for column in (rates.value, rates.low, rates.high))
            ends = _ends(won + tied / 2, won + tied + beaten, lost[code])
            counts = (won, tied, beaten, lost[code])
            rows.append(WinRate(text, system, value, low, high, *counts, *ends, strength[code], error[code]))
        return rows

    def _comparing(self, text: str, draws: int, rng: np.random.Generator, confidence: float) -> Comparing:
        item, _, _ = self._codes()
        judgments = self.judgments[text]
        judged = [one for one in judgments if one.preference is not None]
        known = [(i, one.flipped) for i, one in enumerate(judgments) if one.flipped is not None]
        flips = np.array([[flipped, 1.0] for _, flipped in known], dtype=np.float64).reshape(-1, 2)
        low, high = _by_item(flips, item[[i for i, _ in known]], draws, rng, confidence)
        return Comparing(
            comparator=text,
            pairs=len(self),
            judged=len(judged),
            ties=sum(one.preference == "tie" for one in judged) / len(judged) if judged else math.nan,
            flips=float(flips[:, 0].mean()) if len(flips) else math.nan,
            flips_low=low,
            flips_high=high,
            usage=merge_usage(one.usage for one in judgments),
        )

    def _agreement(self, text: str, aspect: str, draws: int, rng: np.random.Generator, confidence: float) -> Agreement:
        item, _, _ = self._codes()
        both = [
            (i, CHOICES.index(human), CHOICES.index(one.preference))
            for i, (human, one) in enumerate(zip(self.human[aspect], self.judgments[text], strict=True))
            if human is not None and one.preference is not None
        ]
        cells = np.zeros((len(both), 9))
        cells[np.arange(len(both)), [human * 3 + own for _, human, own in both]] = 1.0
        table = cells.sum(axis=0).reshape(1, 3, 3)
        low, high = _by_item(cells, item[[i for i, *_ in both]], draws, rng, confidence, _accuracy)
        shares = [float(share(table)[0]) for share in (accuracy, chance_accuracy, macro_f1)]
        return Agreement(text, aspect, len(both), shares[0], low, high, *shares[1:])


def as_row(comparator: str, judgment: Judgment) -> dict[str, Any]:
    """A judgment as a file has it; what few judgments have is left out where it is not there."""
    few = {
        "flipped": judgment.flipped,
        "shown": list(judgment.shown) or None,
        "raws": list(judgment.raws) or None,
        KIND: None if judgment.failure is None else judgment.failure.kind,
        INCOMPLETE: judgment.incomplete or None,
    }
    return {
        "comparator": comparator,
        "choice": judgment.preference,
        "explanation": judgment.explanation,
        "failure": judgment.failure,
        **{name: value for name, value in few.items() if value is not None},
    }


def _record(chosen: Preferences, system: int) -> tuple[int, int, int]:
    """How often a system won, tied and lost."""
    own = np.concatenate([chosen.choice[chosen.first == system], -chosen.choice[chosen.second == system]])
    won, tied, lost = (int(np.count_nonzero(own == sign)) for sign in (FIRST, TIE, SECOND))
    return won, tied, lost


def _ends(points: float, games: int, failed: int) -> tuple[float, float]:
    whole = games + failed
    return (points / whole, (points + failed) / whole) if whole else (math.nan, math.nan)


def _strengths(chosen: Preferences) -> tuple[list[float], list[float]]:
    try:
        found = bradley_terry(chosen)
    except RunError:
        # A system that never lost has no finite strength; the win rates say all there is.
        return [math.nan] * chosen.systems, [math.nan] * chosen.systems
    return found.strength.tolist(), found.error.tolist()


def _share(sums: _Floats) -> _Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        share: _Floats = sums[..., 0] / sums[..., 1]
    return share


def _accuracy(sums: _Floats) -> _Floats:
    return accuracy(sums.reshape(*sums.shape[:-1], 3, 3))


def _by_item(
    rows: _Floats, item: _Codes, draws: int, rng: np.random.Generator, confidence: float, pool: Any = _share
) -> tuple[float, float]:
    """The interval of what rows pool to; the pairs of an item are drawn together."""
    if not len(rows):
        return math.nan, math.nan
    _, at = np.unique(item, return_inverse=True)
    summed = np.zeros((int(at.max()) + 1, rows.shape[1]))
    np.add.at(summed, at.reshape(-1), rows)
    return pooled_interval(summed, pool, draws, rng, confidence)


# Files of preferences: one JSON object a line, which `read_records` and `metrist meta --preferences` read back.


_FOLDER = "preferences"


@dataclass(frozen=True, slots=True)
class PreferenceTarget:
    """Where judgments go: a file for all comparators, or a folder with a file for each, which a second call completes;
    at most one of them."""

    file: Path | None = None
    folder: Path | None = None


def preference_target(out: str | os.PathLike[str] | None, inputs: Iterable[str]) -> PreferenceTarget:
    """What a path asks for; what could not be written in the end is refused at once."""
    if out is None:
        return PreferenceTarget()
    path = Path(out)
    if path.is_dir() or not path.suffix or os.fspath(out).endswith(("/", os.sep)):
        return PreferenceTarget(folder=path / _FOLDER)
    if flat_suffix(path) != ".jsonl":
        raise RunError(f"cannot write preferences to {path}: wanted a folder, or a file that ends in .jsonl")
    check_writable(path)
    check_distinct(path, inputs)
    return PreferenceTarget(file=path)


def write_rows(path: str | os.PathLike[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """One row a line; the file appears whole or not at all."""
    with atomic_write(path) as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


class StoredJudgments:
    """One comparator's file in a folder, and beside it a page that says of which pairs it was made, and by what; the
    page has the file's hash."""

    def __init__(self, folder: Path, comparator: Comparator, signature: str, pairs: Sequence[Pair]) -> None:
        name = folder_name(comparator.text)
        self._file, self._page = folder / f"{name}.jsonl", folder / f"{name}.json"
        self._comparator = comparator.text
        self._made_by = {"comparator": comparator.text, "signature": signature, "pairs": content_of(pairs)}

    def read(self) -> list[Judgment] | None:
        """What the folder holds of these very pairs; None where that is nothing, or where a pair, or a judge of one,
        had failed: what was answered before is in the LLM's cache, so asking again costs only what is missing."""
        try:
            page, rows = json.loads(self._page.read_text(encoding="utf-8")), self._file.read_bytes()
        except (OSError, ValueError):
            return None
        if page != {**self._made_by, "file": hashlib.sha256(rows).hexdigest()}:
            return None
        found = [_judgment(json.loads(row)) for row in rows.splitlines()]
        return found if all(map(_is_settled, found)) else None

    def write(self, keys: Sequence[Key], judgments: Sequence[Judgment]) -> None:
        """Write the file, then the page."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        rows = zip(keys, judgments, strict=True)
        write_rows(
            self._file,
            ({"item": item, "systems": [a, b], **as_row(self._comparator, one)} for (item, a, b), one in rows),
        )
        with atomic_write(self._page) as page:
            made = {**self._made_by, "file": hashlib.sha256(self._file.read_bytes()).hexdigest()}
            page.write(json.dumps(made, indent=1) + "\n")


def content_of(pairs: Sequence[Pair]) -> str:
    """A hash of all that the pairs say."""
    digest = hashlib.sha256()
    for pair in pairs:
        for record in (pair.first, pair.second):
            said = (record.item, record.system, record.output, record.source, record.references, record.instruction)
            digest.update(repr((*said, record.task, record.language)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def _is_settled(judgment: Judgment) -> bool:
    return judgment.failure is None and not judgment.incomplete


def _judgment(row: Mapping[str, Any]) -> Judgment:
    return Judgment(
        preference=row["choice"],
        explanation=row["explanation"],
        failure=None if row["failure"] is None else read_failure(row["failure"], row.get(KIND)),
        flipped=row.get("flipped"),
        shown=tuple(row.get("shown") or ()),
        raws=tuple(row.get("raws") or ()),
        incomplete=bool(row.get(INCOMPLETE)),
    )
