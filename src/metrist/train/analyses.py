"""Analyses to learn from: reading and dividing them, and laying their tokens out in rows for the training loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metrist.errors import InputError, ModelError, format_count
from metrist.io.row_model import RowError
from metrist.io.rows import open_source
from metrist.io.table_rows import Cells, parse_cells
from metrist.llm.messages import Message, Turns, encode_prompt, has_chat_template
from metrist.metrics.errors.tigerscore import build_prompt, parse_tiger_answer
from metrist.models.weights import file_digest
from metrist.ratings import Error
from metrist.train.dataset import group_by_shared_texts, parse_share
from metrist.train.examples import IGNORED

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

    def remarks(self) -> list[str]:
        remarks = []
        if self.repeated:
            remarks.append(f"{format_count(self.repeated, 'repeated analysis is', 'repeated analyses are')} ignored")
        if self.shared:
            remarks.append(
                f"{self.shared:,} of {len(self.dev):,} held-out analyses share their item, source or output with the "
                "training data, so their figures are too good"
            )
        return remarks


def read_analyses(path: str | Path) -> list[Analysis]:
    """Read a file of `metrist build error-analysis`, or any rows with a prompt and a completion, with chat messages, or
    with instruction, source, output and errors."""
    source = open_source(path)
    analyses = []
    for line, row in source.read():
        try:
            if isinstance(row, RowError):
                raise row
            analyses.append(_parse_row(parse_cells(row) if type(row) is Cells else row))
        except RowError as fault:
            raise InputError(f"{source.location(line)}: {fault}") from None
    if not analyses:
        raise InputError(
            f"{source.name}: has no analyses to learn from; expected rows as `metrist build error-analysis` writes them"
        )
    return analyses


def _parse_row(row: Any) -> Analysis:
    if not isinstance(row, Mapping):
        raise RowError(f"expected an object with 'prompt' and 'completion', got {type(row).__name__}")
    texts: dict[str, str | None] = {}
    for name in ("prompt", "completion", "item", "system", "task", "channel", "instruction", "source", "output"):
        value = row.get(name)
        if value is not None and not isinstance(value, str):
            raise RowError(f"{name!r} must be a text, got {type(value).__name__}")
        texts[name] = value
    if texts["prompt"] is None and "messages" in row:
        texts["prompt"], texts["completion"] = _parse_messages(row["messages"])
    if texts["prompt"] is None and texts["output"] is not None:
        texts["prompt"] = build_prompt(texts["instruction"] or "", texts["source"] or "", texts["output"])
    prompt, completion = texts.pop("prompt"), texts.pop("completion")
    if not prompt or not (completion or "").strip():
        missing = "completion" if prompt else "prompt"
        raise RowError(
            f"has no {missing!r}; expected 'prompt' and 'completion', as `metrist build error-analysis` writes them, "
            "or 'messages'"
        )
    assert completion is not None
    # Without the prompt, in which only scoring must look for quotations: that takes most of the time.
    parsed = parse_tiger_answer(completion)
    if parsed.failure is not None:
        raise RowError(f"the completion cannot be read as an analysis: {parsed.failure}")
    return Analysis(
        prompt=prompt,
        completion=completion.strip(),
        item=texts["item"] or "",
        system=texts["system"] or "",
        task=texts["task"],
        channel=texts["channel"],
        instruction=texts["instruction"],
        source=texts["source"] or "",
        output=texts["output"],
        errors=_parse_errors(row.get("errors"), texts["output"]),
    )


def _parse_messages(messages: Any) -> tuple[str, str]:
    """The user's and the assistant's text of a conversation of one exchange."""
    if (
        not isinstance(messages, list)
        or not all(isinstance(turn, Mapping) and isinstance(turn.get("content"), str) for turn in messages)
        or [turn.get("role") for turn in messages] != ["user", "assistant"]
    ):
        raise RowError("'messages' must be a list of one user and one assistant message, each with 'content'")
    return messages[0]["content"], messages[1]["content"]


def _parse_errors(value: Any, output: str | None) -> tuple[Error, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(row, Mapping) for row in value):
        raise RowError("'errors' must be a list of objects")
    errors = []
    for number, row in enumerate(value, 1):
        start, end, penalty = row.get("start"), row.get("end"), row.get("penalty")
        if not all(at is None or (isinstance(at, int) and not isinstance(at, bool)) for at in (start, end)):
            raise RowError(f"error {number}: 'start' and 'end' must be whole numbers, got {start!r} and {end!r}")
        if penalty is not None and (isinstance(penalty, bool) or not isinstance(penalty, int | float)):
            raise RowError(f"error {number}: 'penalty' must be a number, got {penalty!r:.40}")
        side = "source" if row.get("side") == "source" else "output"
        placed = side == "output" and start is not None and end is not None and output is not None
        if placed and not 0 <= start <= end <= len(output or ""):
            raise RowError(
                f"error {number}: characters {start} to {end} are not in the output, which has {len(output or ''):,}"
            )
        errors.append(
            Error(
                aspect=str(row.get("aspect") or ""),
                severity=str(row["severity"]).lower() if row.get("severity") else None,
                penalty=None if penalty is None else float(penalty),
                explanation=str(row.get("explanation") or ""),
                revision=str(row.get("revision") or ""),
                text=str(row.get("text") or ""),
                start=start,
                end=end,
                side=side,  # type: ignore[arg-type]
            )
        )
    return tuple(errors)


def load_analyses(
    data: Sequence[Path],
    dev: str | None,
    *,
    seed: int,
    tasks: Sequence[str] = (),
    channels: Sequence[str] = (),
) -> AnalysisData:
    """Read the files and hold out a share of the items, or read held-out analyses from another file. Analyses that
    share an item, a source or an output stay on one side. `tasks` and `channels` select what is trained on, after the
    split, so that all selections are judged on the same held-out analyses."""
    read = {path: read_analyses(path) for path in data}
    everything = [analysis for analyses in read.values() for analysis in analyses]
    train = list(dict.fromkeys(everything))
    repeated = len(everything) - len(train)
    held_out: list[Analysis] = []
    share, dev_file = parse_share(dev), None
    if share is not None:
        train, held_out = _split_off(train, share, seed)
    elif dev is not None:
        held_out = list(dict.fromkeys(read_analyses(dev)))
        dev_file = _describe_file(Path(dev), held_out)
    for name, values in (("task", tasks), ("channel", channels)):
        train = _select(train, name, values)
    return AnalysisData(
        train=tuple(train),
        dev=tuple(held_out),
        files=tuple(_describe_file(path, analyses) for path, analyses in read.items()),
        dev_file=dev_file,
        repeated=repeated,
        shared=_count_shared(train, held_out) if dev_file else 0,
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
    groups: dict[int, list[int]] = {}
    for number, group in enumerate(group_by_shared_texts([_keys(analysis) for analysis in analyses])):
        groups.setdefault(group, []).append(number)
    members, target = list(groups.values()), max(1, round(share * len(analyses)))
    chosen: set[int] = set()
    for at in np.random.default_rng([seed, 3]).permutation(len(members)):
        if len(chosen) + len(members[at]) <= target:
            chosen.update(members[at])
    if not chosen or len(chosen) == len(analyses):
        raise InputError(
            f"cannot hold out {target:,} of {format_count(len(analyses), 'analysis', 'analyses')}: too many share "
            "their item, source or output; give held-out analyses as `dev`, another share, or none (0)"
        )
    train = [analysis for number, analysis in enumerate(analyses) if number not in chosen]
    return train, [analyses[number] for number in sorted(chosen)]


def _count_shared(train: Sequence[Analysis], dev: Sequence[Analysis]) -> int:
    seen = {key for analysis in train for key in _keys(analysis)}
    return sum(bool(seen.intersection(_keys(analysis))) for analysis in dev)


def _describe_file(path: Path, analyses: Sequence[Analysis]) -> dict[str, Any]:
    channels = Counter(analysis.channel or "not stated" for analysis in analyses)
    counts = ", ".join(f"{name} {count:,}" for name, count in channels.most_common())
    return {"file": path.name, "sha256": file_digest(path), "analyses": len(analyses), "channels": counts}


# ---- Rows of tokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnalysisRows:
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

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def spaces(self) -> NDArray[np.int64]:
        return self.lengths

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
        raise ModelError("the base model's tokenizer has no token that ends a text, so answers would never end")
    ids: list[Row] = []
    starts, left_out = [], []
    for number, analysis in enumerate(analyses):
        prompt = encode_prompt(tokenizer, (Message("user", analysis.prompt),), turns)
        target = tokenizer(format_target(analysis.completion, turns), add_special_tokens=False, verbose=False)
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


def format_target(completion: str, turns: Turns) -> str:
    """The text that follows the prompt: a bare prompt ends with its last word, and a chat template with a new line."""
    return f"\n{completion}" if turns == "none" else completion


def choose_turns(tokenizer: Any, turns: Turns | None) -> Turns:
    """The chat template, if the model has one; otherwise the bare prompt, as the published checkpoints."""
    if turns == "chat" and not has_chat_template(tokenizer):
        raise ModelError("the base model has no chat template: use the bare prompt (`turns='none'`)")
    return turns or ("chat" if has_chat_template(tokenizer) else "none")
