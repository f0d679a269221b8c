"""Turn the rows of a source into batches of records that did not occur before, with what the rows say about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from metrist.errors import InputError, agree
from metrist.io.dedup import ItemCheck, RecordKeys, SourceCheck, place_of
from metrist.io.fields import ColumnMap
from metrist.io.hashes import hash_records
from metrist.io.json_rows import PLAIN_NAMES, Wish
from metrist.io.row_model import CompleteRows, ParsedRow, PlainRow, RatedRow, RowError
from metrist.io.row_parser import RowParser, RowParts, parse_judgments, simple_ratings
from metrist.io.rows import RowSource
from metrist.io.table_rows import Cells
from metrist.language import is_english
from metrist.records import Hashes, RecordColumns

if TYPE_CHECKING:
    from metrist.io.layouts import RowLayout

_KEPT_MESSAGES = 20
#: Outputs of a block whose language is looked at; how many of them, and which share, must be in another one.
_LOOKED_AT, _FEWEST_OTHERS, _SHARE_OF_OTHERS = 32, 3, 0.2
#: Records of a batch, and about how many characters of text.
BATCH_RECORDS, BATCH_CHARACTERS = 8192, 8_000_000
#: Judgments are not read; or left out if they cannot be parsed; or errors if they cannot be parsed.
Judgments = Literal["ignored", "kept", "required"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Consecutive rows of one source, as columns: the records that did not occur before, and what rows say besides
    (`judged`: parsed rows, without their records, that hold a rating, a preference, an error, a stored score or choice,
    a weight, or columns without an output). `lines` are the lines of the records."""

    source: int
    records: RecordColumns
    lines: Sequence[int]
    judged: Sequence[ParsedRow | RatedRow] = ()

    @cached_property
    def hashes(self) -> Hashes:
        return hash_records(self.records)


@dataclass(slots=True)
class Skipped:
    """The number of bad rows that were skipped, and the messages of the first of them."""

    count: int = 0
    messages: list[str] = field(default_factory=list)

    def add(self, message: str) -> None:
        self.count += 1
        if len(self.messages) < _KEPT_MESSAGES:
            self.messages.append(message)

    def join(self, other: Skipped) -> None:
        """Add the rows that were skipped after these."""
        self.count += other.count
        self.messages += other.messages[: _KEPT_MESSAGES - len(self.messages)]

    def describe(self) -> list[str]:
        """A note for the user; none where no row was skipped."""
        return [f"{self.describe_count()}; the first: {self.messages[0]}"] if self.count else []

    def describe_count(self) -> str:
        return agree(self.count, "1 bad row was skipped", f"{self.count:,} bad rows were skipped")


@dataclass(slots=True)
class Observations:
    """What the rows of all sources showed, for notes to the user."""

    skipped: Skipped = field(default_factory=Skipped)
    skipped_by_source: Counter[int] = field(default_factory=Counter)
    #: Rows whose judgments cannot be read, where that is no error.
    left_out: Skipped = field(default_factory=Skipped)
    #: Of tables, where a cell may be empty by mistake.
    empty_outputs: int = 0
    #: Rows that hold nothing but what an earlier row holds.
    repeats: int = 0
    #: Of the outputs that were looked at, how many are in English, surely or surely not.
    languages: Counter[bool | None] = field(default_factory=Counter)
    source_check: SourceCheck = field(default_factory=SourceCheck)
    item_check: ItemCheck = field(default_factory=ItemCheck)
    layout_remarks: list[str] = field(default_factory=list)

    def add(self, block: Block, *, compare_sources: bool) -> None:
        columns = block.columns
        step = max(1, len(columns) // _LOOKED_AT)
        self.languages.update(is_english(columns[n]) for n in range(0, len(columns), step))
        if block.is_table:
            self.empty_outputs += sum(not output for output in columns.outputs)
        if compare_sources:
            sources = [" ".join(source.split()) if source else "" for source in columns.sources]
            self.source_check.add(columns.items, sources)
        if self.item_check.is_needed:
            self.item_check.add(columns)

    def join(self, later: Observations) -> None:
        """Add what later rows of the input showed, without the checks of items."""
        self.layout_remarks += later.layout_remarks
        self.repeats += later.repeats
        self.languages.update(later.languages)
        self.empty_outputs += later.empty_outputs
        self.left_out.join(later.left_out)
        self.skipped.join(later.skipped)
        self.item_check.is_needed |= later.item_check.is_needed

    def describe(self) -> list[str]:
        remarks = [*self.layout_remarks]
        if self.empty_outputs:
            remarks.append(agree(self.empty_outputs, "1 output is empty", f"{self.empty_outputs:,} outputs are empty"))
        if self.repeats:
            repeats = agree(
                self.repeats,
                "1 row repeats an earlier one and counts",
                f"{self.repeats:,} rows repeat an earlier one and count",
            )
            remarks.append(f"{repeats} once")
        if self.left_out.count:
            rows = agree(self.left_out.count, "1 row is", f"{self.left_out.count:,} rows are")
            remarks.append(f"the judgments of {rows} left out; the first: {self.left_out.messages[0]}")
        english, others = self.languages[True], self.languages[False]
        if min(english, others) >= max(_FEWEST_OTHERS, _SHARE_OF_OTHERS * (english + others)):
            remarks.append(
                f"outputs are in several languages: of {english + others:,} that were looked at, {english:,} are in "
                f"English and {others:,} are not; their scores may not be comparable"
            )
        remarks += self.source_check.describe()
        if self.item_check.disjoint:
            remarks.append(
                "no item has outputs of two systems, so systems cannot be compared item by item: name the column that "
                "their rows share, `fields={'item': 'COLUMN'}`, or give `item_key='source'` if the same source is the "
                "same item"
            )
        return remarks


@dataclass(slots=True)
class SourceRows:
    """The rows of one source, and how they are parsed. `position` counts them; `learn` is called with a row that is the
    first one or has new columns."""

    file: int
    source: RowSource
    columns: ColumnMap
    parser: RowParser
    rows: Iterator[tuple[int, Any]]
    wish: Wish
    layout: RowLayout | None
    position: int
    observed: Observations
    skip_bad: bool
    learn: Callable[[Mapping[str, Any], SourceRows], None]

    @property
    def is_converted(self) -> bool:
        """Whether rows come of another layout, or of a file of another tool, in which they depend on earlier ones."""
        return self.layout is not None or bool(self.source.format.tool)

    def fill(self, block: Block, size: int, judgments: Judgments) -> bool:
        """Parse rows until the block is full; return whether there may be more."""
        parser = self.parser
        layout = self.layout
        can_be_plain = not self.is_converted and not parser.item_key and judgments != "required"
        records: Any
        parts: RowParts | None
        room = BATCH_CHARACTERS
        for line, row in self.rows:
            if type(row) is CompleteRows:
                self.position += len(row)
                block.add_rows(line, row, judgments)
                room -= row.size
                if len(block.records) >= size or room < 0:
                    return True
                continue
            self.position = self.position + 1 if layout is None else layout.position
            block.rows += 1
            try:
                if type(row) is PlainRow:
                    self.wish.complete = parser.items_are_named is True
                    parser.complete(row, self.position)
                    parts = None
                    records = (row,)
                    is_judged = bool(row.ratings or row.rater)
                else:
                    parts = self._parse(row, can_be_plain)
                    records = parts.records
                    is_judged = any(parts.judged.values())
                    block.is_table = type(row) is Cells
                    if judgments == "required":
                        block.parsed.append((block.rows, parse_judgments(parts, self.source.location(line), records)))
            except RowError as error:
                message = self.describe_error(line, error)
                if not self.skip_bad:
                    raise InputError(message, code="invalid_row") from None
                block.errors.append((block.rows, message))
                if block.rows >= 2 * size:
                    return True
                continue
            block.good += 1
            if is_judged or len(records) != 1:
                block.judged_rows.add(block.rows)
            if is_judged and judgments == "kept":
                try:
                    block.parsed.append((block.rows, self._parse_judgments(line, row, parts)))
                except RowError as error:
                    self.observed.left_out.add(self.describe_error(line, error))
            for record in records:
                block.records.append(record)
                block.lines.append(line)
                block.row_numbers.append(block.rows)
                room -= len(record.output) + len(record.source or "") + sum(map(len, record.references))
            if len(block.records) >= size or room < 0 or block.rows >= 2 * size:
                return True
        return False

    def _parse(self, row: Any, can_be_plain: bool) -> RowParts:
        """Parse a row, and request plain rows if the next one is likely to be plain."""
        self.wish.plain = self.wish.complete = False
        if isinstance(row, RowError):
            raise row
        if type(row) is dict:
            has_new_columns = not self.columns.samples or not row.keys() <= self.columns.known
        else:  # All rows of a table have the same columns.
            has_new_columns = type(row) is Cells and not self.columns.samples
        if has_new_columns:
            self.learn(row, self)
        is_plain = can_be_plain and not self.columns.fields and type(row) is dict and row.keys() <= PLAIN_NAMES
        parts = self.parser.parse(row, self.position)
        self.wish.plain = is_plain
        self.wish.complete = is_plain and self.parser.items_are_named is True
        return parts

    def _parse_judgments(self, line: int, row: Any, parts: RowParts | None) -> ParsedRow | RatedRow:
        """What a row says; `parts` are None for a plain one."""
        if parts is None:
            ratings = row.simple_ratings
            if ratings is not None:
                return RatedRow(line, row.item, row.system, ratings)
            judged = {"ratings": row.ratings} if row.rater is None else {"ratings": row.ratings, "rater": row.rater}
            parts = RowParts(((row.item, row.system),), (row,), judged)
        elif len(parts.records) == 1:
            ratings = simple_ratings(parts.judged)
            if ratings is not None:
                return RatedRow(line, *parts.keys[0], ratings)
        return parse_judgments(parts, self.source.location(line))

    def describe_error(self, line: int, reason: object) -> str:
        return f"{self.source.location(line)}: {reason}"


@dataclass(slots=True)
class Block:
    """Rows of one source: first those that were parsed, and then what of them is new, in `columns` and `entries`.

    `lines` and `row_numbers` are those of the records; `judged_rows` hold more than one record. `errors` are messages
    about bad rows.
    """

    records: list[Any] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    row_numbers: list[int] = field(default_factory=list)
    parsed: list[tuple[int, ParsedRow | RatedRow]] = field(default_factory=list)
    judged_rows: set[int] = field(default_factory=set)
    errors: list[tuple[int, str]] = field(default_factory=list)
    rows: int = 0
    good: int = 0
    is_table: bool = False
    columns: RecordColumns = field(default_factory=lambda: RecordColumns.of(()))
    entries: list[Any] = field(default_factory=list)

    @property
    def judged(self) -> list[ParsedRow | RatedRow]:
        names = ("ratings", "scores", "errors", "preferences", "choices", "raters", "columns", "weight")
        return [row for row in self.entries if type(row) is RatedRow or any(getattr(row, name) for name in names)]

    def add_rows(self, line: int, rows: CompleteRows, judgments: Judgments) -> None:
        """Add rows that need no parsing; `line` is the first one's."""
        numbers = range(self.rows + 1, self.rows + 1 + len(rows))
        self.records += rows
        self.lines += range(line, line + len(rows))
        self.row_numbers += numbers
        self.rows += len(rows)
        self.good += len(rows)
        judged = [(number, row) for number, row in zip(numbers, rows, strict=True) if row.ratings]
        self.judged_rows.update(number for number, _ in judged)
        if judgments == "kept":
            first = line - numbers[0]
            self.parsed += [(n, RatedRow(first + n, row.item, row.system, row.ratings or {})) for n, row in judged]

    def keep_new(
        self, source: SourceRows, keys: RecordKeys, seen: set[int], describe_conflict: Callable[..., str]
    ) -> InputError | None:
        """Compare the rows with all that was read before, and keep what is new. Return the error of a record that
        contradicts an earlier one, where the reading ends with it."""
        columns = RecordColumns.of(self.records)
        new, repeated, conflicts = keys.admit(columns, self.row_numbers, place_of(source.file, self.lines))
        skipped = source.observed.skipped
        failure = None
        for count, (n, place) in enumerate(conflicts, skipped.count):
            message = ""
            if count < _KEPT_MESSAGES:
                reason = describe_conflict(self, source, n, place, new, is_first=not count)
                message = source.describe_error(self.lines[n], reason)
            if not source.skip_bad:
                # What comes after it does not count.
                last = self.row_numbers[n]
                new = [i for i in new if self.row_numbers[i] < last]
                repeated = [i for i in repeated if self.row_numbers[i] < last]
                self.parsed = [(row, entry) for row, entry in self.parsed if row < last]
                failure = InputError(message)
                break
            self.errors.append((self.row_numbers[n], message))
            self.good -= 1
        for _, message in sorted(self.errors):
            skipped.add(message)
        if conflicts and source.skip_bad:
            bad = {self.row_numbers[n] for n, _ in conflicts}
            self.parsed = [(row, entry) for row, entry in self.parsed if row not in bad]
        if len(new) != len(columns):
            source.observed.repeats += sum(self.row_numbers[n] not in self.judged_rows for n in repeated)
            fresh = {(self.row_numbers[n], columns.systems[n]) for n in new}
            for at, (row, entry) in enumerate(self.parsed):
                if isinstance(entry, RatedRow):
                    continue
                texts = tuple(record for record in entry.records if (row, record.system) in fresh)
                if len(texts) != len(entry.records):
                    self.parsed[at] = row, replace(entry, new=texts)
            columns = columns.take(new)
            self.lines = [self.lines[n] for n in new]
        self.columns = columns
        self.entries = [e if isinstance(e, RatedRow) else drop_repeated(e, seen) for _, e in self.parsed]
        return failure

    def keep_all(self, source: SourceRows) -> None:
        """Keep all records, also several of one item and system, and no judgments."""
        for _, message in sorted(self.errors):
            source.observed.skipped.add(message)
        self.columns = RecordColumns.of(self.records)


def drop_repeated(entry: ParsedRow, seen: set[int]) -> ParsedRow:
    """Return the row without judgments that repeat an earlier row exactly."""
    emptied: dict[str, Any] = {}
    raters = [
        *(rating.rater for rating in entry.ratings),
        *(preference.rater for preference in entry.preferences),
        *(stored.error.rater for stored in entry.errors),
    ]
    if raters and None not in raters and _was_seen(seen, entry.ratings, entry.preferences, entry.errors):
        emptied = {"ratings": (), "preferences": (), "errors": ()}
    if (entry.scores or entry.choices) and _was_seen(seen, entry.scores, entry.choices):
        emptied |= {"scores": (), "choices": ()}
    return replace(entry, **emptied) if emptied else entry


def _was_seen(seen: set[int], *parts: tuple[Any, ...]) -> bool:
    known = len(seen)
    seen.add(hash(repr(parts)))  # of the text, not the values: hash(-1) == hash(-2)
    return len(seen) == known
