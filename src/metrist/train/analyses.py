"""Analyses to learn from: reading and dividing them, and laying their tokens out in rows for the training loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from metrist.data.error_analysis.examples import read_published_row
from metrist.data.splits import hold_out, parse_share
from metrist.errors import InputError, ModelError, format_count
from metrist.io.batches import Skipped
from metrist.io.fields import rename_rows
from metrist.io.row_model import RowError
from metrist.io.rows import open_source
from metrist.io.table_rows import Cells, parse_cells
from metrist.llm.messages import Message, Turns, encode_prompt
from metrist.metrics.errors.tigerscore import build_prompt, parse_tiger_answer
from metrist.models.weights import file_digest
from metrist.ratings import Error, Side
from metrist.train.task import IGNORED, Examples

if TYPE_CHECKING:
    from torch import Tensor

Row = NDArray[np.int32]
#: Tokens of prompt and analysis together, as in the TIGERScore paper.
MAX_LENGTH = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """A prompt with the analysis to learn. The judged texts and `errors` are there if the file has them: held-out
    analyses are compared with what the trained model says about the same output."""

    prompt: str
    completion: str
    item: str = ""
    system: str = ""
    task: str | None = None
    channel: str | None = None
    instruction: str | None = None
    source: str = ""
    output: str | None = None
    errors: tuple[Error, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisData:
    """Training and held-out analyses, and what the card says about their files. `dev_file` is None if the held-out
    analyses were split off."""

    train: tuple[Analysis, ...]
    dev: tuple[Analysis, ...] = ()
    files: tuple[Mapping[str, Any], ...] = ()
    dev_file: Mapping[str, Any] | None = None
    repeated: int = 0
    shared: int = 0
    skipped: Skipped | None = None

    def remarks(self) -> list[str]:
        remarks = self.skipped.describe() if self.skipped else []
        if self.repeated:
            remarks.append(f"{format_count(self.repeated, 'repeated analysis is', 'repeated analyses are')} ignored")
        if self.shared:
            remarks.append(
                f"{self.shared:,} of {len(self.dev):,} held-out analyses share their item, source or output with the "
                "training data, so their figures are too good"
            )
        return remarks


def read_analyses(
    path: str | Path, fields: Mapping[str, str] | None = None, skipped: Skipped | None = None
) -> list[Analysis]:
    """Read a file of `metrist build error-analysis`, or any rows with a prompt and a completion, with chat messages,
    with instruction, source, output and completion, or in the layouts of MetricInstruct. `fields` maps fields to
    columns of another name. The first bad row raises an error, unless `skipped` counts them."""
    source = open_source(path)
    analyses = []
    for line, row in rename_rows(source.read(), fields or {}, source.name):
        try:
            if isinstance(row, RowError):
                raise row
            analyses.append(_parse_row(parse_cells(row) if type(row) is Cells else row))
        except RowError as fault:
            message = f"{source.location(line)}: {fault}"
            if skipped is None:
                raise InputError(message) from None
            skipped.add(message)
    if not analyses:
        raise InputError(
            f"{source.name}: has no analyses; expected rows as `metrist build error-analysis` writes them",
            code="no_data",
        )
    return analyses


class _Turn(msgspec.Struct):
    role: str
    content: str


class _MarkedError(msgspec.Struct):
    aspect: str | None = None
    severity: str | None = None
    penalty: float | None = None
    explanation: str | None = None
    revision: str | None = None
    text: str | None = None
    start: int | None = None
    end: int | None = None
    side: str | None = None


class _AnalysisRow(msgspec.Struct):
    prompt: str | None = None
    completion: str | None = None
    item: str | None = None
    system: str | None = None
    task: str | None = None
    channel: str | None = None
    instruction: str | None = None
    source: str | None = None
    output: str | None = None
    errors: list[_MarkedError] | None = None


def _parse_row(values: Any) -> Analysis:
    if isinstance(values, dict):
        values = read_published_row(values)
    try:
        row = msgspec.convert(values, _AnalysisRow)
        if row.prompt is None and "messages" in values:
            turns = msgspec.convert(values["messages"], list[_Turn])
            if [turn.role for turn in turns] != ["user", "assistant"]:
                raise RowError("'messages' must be a list of one user and one assistant message")
            row.prompt, row.completion = (turn.content for turn in turns)
    except msgspec.ValidationError as fault:
        raise RowError(f"no analysis: {fault}") from None
    if row.prompt is None and row.output is not None:
        row.prompt = build_prompt(row.instruction or "", row.source or "", row.output)
    if not row.prompt or not row.completion or not row.completion.strip():
        missing = "completion" if row.prompt else "prompt"
        raise RowError(
            f"has no {missing!r}; expected 'prompt' and 'completion', as `metrist build error-analysis` writes them, "
            "or 'messages'"
        )
    # Without the prompt, in which only scoring must look for quotations: that takes most of the time.
    parsed = parse_tiger_answer(row.completion)
    if parsed.failure is not None:
        raise RowError(f"the completion cannot be read as an analysis: {parsed.failure}")
    return Analysis(
        prompt=row.prompt,
        completion=row.completion.strip(),
        item=row.item or "",
        system=row.system or "",
        task=row.task,
        channel=row.channel,
        instruction=row.instruction,
        source=row.source or "",
        output=row.output,
        errors=tuple(_make_error(error, number, row.output) for number, error in enumerate(row.errors or (), 1)),
    )


def _make_error(row: _MarkedError, number: int, output: str | None) -> Error:
    side: Side = "source" if row.side == "source" else "output"
    is_placed = side == "output" and output is not None and row.start is not None and row.end is not None
    if is_placed and not 0 <= (row.start or 0) <= (row.end or 0) <= len(output or ""):
        raise RowError(
            f"error {number}: characters {row.start} to {row.end} are not in the output, which has "
            f"{len(output or ''):,}"
        )
    return Error(
        aspect=row.aspect or "",
        severity=row.severity.lower() if row.severity else None,
        penalty=row.penalty,
        explanation=row.explanation or "",
        revision=row.revision or "",
        text=row.text or "",
        start=row.start,
        end=row.end,
        side=side,
    )


def load_analyses(
    data: Sequence[Path],
    dev: str | None,
    *,
    seed: int,
    tasks: Sequence[str] = (),
    channels: Sequence[str] = (),
    fields: Mapping[str, str] | None = None,
    skip_bad: bool = False,
) -> AnalysisData:
    """Read the files and hold out a share of the items, or read held-out analyses from another file. Analyses that
    share an item, a source or an output stay on one side. `tasks` and `channels` select what is trained on, after the
    split, so that all selections are judged on the same held-out analyses."""
    skipped = Skipped() if skip_bad else None
    read = {path: read_analyses(path, fields, skipped) for path in data}
    everything = [analysis for analyses in read.values() for analysis in analyses]
    train = list(dict.fromkeys(everything))
    repeated = len(everything) - len(train)
    held_out: list[Analysis] = []
    share, dev_file = parse_share(dev), None
    if share is not None:
        train, held_out = _split_off(train, share, seed)
    elif dev is not None:
        held_out = list(dict.fromkeys(read_analyses(dev, fields, skipped)))
        dev_file = _describe_file(Path(dev), held_out)
    for name, values in (("task", tasks), ("channel", channels)):
        train = _select(train, name, values)
    shared = 0
    if dev_file:
        seen = {key for analysis in train for key in _keys(analysis)}
        shared = sum(bool(seen.intersection(_keys(analysis))) for analysis in held_out)
    return AnalysisData(
        train=tuple(train),
        dev=tuple(held_out),
        files=tuple(_describe_file(path, analyses) for path, analyses in read.items()),
        dev_file=dev_file,
        repeated=repeated,
        shared=shared,
        skipped=skipped,
    )


def _select(analyses: list[Analysis], name: str, values: Sequence[str]) -> list[Analysis]:
    if not values:
        return analyses
    known = Counter(str(getattr(analysis, name)) for analysis in analyses)
    for value in values:
        if value not in known:
            listed = ", ".join(f"{one} ({count:,})" for one, count in known.most_common())
            raise InputError(f"no training analysis has the {name} {value!r}; there are {listed}")
    return [analysis for analysis in analyses if str(getattr(analysis, name)) in values]


def _keys(analysis: Analysis) -> tuple[str, ...]:
    """The texts that decide on which side an analysis is."""
    own = (f"item {analysis.task} {analysis.item}" if analysis.item else "", analysis.source, analysis.output or "")
    return tuple(text for text in own if text.strip()) or (analysis.prompt,)


def _split_off(analyses: Sequence[Analysis], share: float, seed: int) -> tuple[list[Analysis], list[Analysis]]:
    chosen = hold_out([_keys(analysis) for analysis in analyses], share, np.random.default_rng([seed, 3]))
    if not chosen or len(chosen) == len(analyses):
        raise InputError(
            f"cannot hold out {share:g} of {len(analyses):,} analyses: too many share a text; give a file as `dev`",
            code="too_little_data",
        )
    train = [analysis for number, analysis in enumerate(analyses) if number not in chosen]
    return train, [analyses[number] for number in sorted(chosen)]


def _describe_file(path: Path, analyses: Sequence[Analysis]) -> dict[str, Any]:
    channels = Counter(analysis.channel or "not stated" for analysis in analyses)
    counts = ", ".join(f"{name} {count:,}" for name, count in channels.most_common())
    return {"file": path.name, "sha256": file_digest(path), "analyses": len(analyses), "channels": counts}


# ---- Rows of tokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnalysisRows(Examples):
    """Examples for the training loop. An example's weight is the number of its target tokens: the loss is a mean over
    tokens. `packed`: examples share rows of up to `row_tokens` tokens. `left_out` are the numbers of analyses that are
    too long."""

    ids: list[Row]
    #: Where the analysis begins in each row.
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    weights: NDArray[np.float64]
    pad: int
    row_tokens: int
    packed: bool
    left_out: tuple[int, ...] = ()

    def collate(self, indices: NDArray[np.int64]) -> dict[str, Tensor]:
        """Lay the examples out in rows. `segments` numbers the examples of a row from 1 (0: padding), `owners` has the
        number of the example whose target a token is (-1: none), and `labels` the next token where it is one."""
        import torch

        rows = self._pack(indices)
        width = max(sum(len(self.ids[indices[at]]) for at in row) for row in rows)
        shape = len(rows), width
        ids = np.full(shape, self.pad, np.int64)
        labels, owners = np.full(shape, IGNORED, np.int64), np.full(shape, -1, np.int64)
        positions, segments = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for line, row in enumerate(rows):
            begin = 0
            for segment, at in enumerate(row, 1):
                tokens, start = self.ids[indices[at]], int(self.starts[indices[at]])
                end = begin + len(tokens)
                ids[line, begin:end] = tokens
                positions[line, begin:end] = np.arange(len(tokens))
                segments[line, begin:end] = segment
                # The token at a position predicts the one after it.
                labels[line, begin + start - 1 : end - 1] = tokens[start:]
                owners[line, begin + start - 1 : end - 1] = at
                begin = end
        columns = {"input_ids": ids, "labels": labels, "owners": owners, "positions": positions, "segments": segments}
        return {name: torch.from_numpy(column) for name, column in columns.items()}

    def _pack(self, indices: NDArray[np.int64]) -> list[list[int]]:
        """Put places of `indices` into rows: the longest first, each into the first row with room."""
        if not self.packed:
            return [[at] for at in range(len(indices))]
        lengths = self.lengths[indices]
        room = max(self.row_tokens, int(lengths.max()))
        rows: list[list[int]] = []
        free: list[int] = []
        for at in np.argsort(-lengths, kind="stable"):
            length = int(lengths[at])
            line = next((line for line, left in enumerate(free) if left >= length), len(rows))
            if line == len(rows):
                rows.append([])
                free.append(room)
            rows[line].append(int(at))
            free[line] -= length
        return rows


def encode_analyses(
    tokenizer: Any,
    analyses: Sequence[Analysis],
    *,
    turns: Turns,
    max_length: int = MAX_LENGTH,
    packed: bool = True,
) -> AnalysisRows:
    """Tokenize prompts as `tigerscore` does, and analyses after them up to the token that ends an answer."""
    end = tokenizer.eos_token_id
    if end is None:
        raise ModelError(
            "the base model's tokenizer has no token that ends a text, so answers would never end", code="no_data"
        )
    ids: list[Row] = []
    starts, left_out = [], []
    for number, analysis in enumerate(analyses):
        prompt = encode_prompt(tokenizer, (Message("user", analysis.prompt),), turns)
        # A bare prompt ends with its last word, and a chat template with a new line.
        text = f"\n{analysis.completion}" if turns == "none" else analysis.completion
        target = tokenizer(text, add_special_tokens=False, verbose=False)
        row = [*prompt, *target["input_ids"], end]
        if len(row) > max_length or not prompt:
            left_out.append(number)
            continue
        ids.append(np.array(row, np.int32))
        starts.append(len(prompt))
    lengths = np.array([len(row) for row in ids], np.int64)
    begin = np.array(starts, np.int64)
    return AnalysisRows(
        ids=ids,
        starts=begin,
        lengths=lengths,
        weights=(lengths - begin).astype(np.float64),
        pad=int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else end),
        row_tokens=max_length,
        packed=packed,
        left_out=tuple(left_out),
    )
