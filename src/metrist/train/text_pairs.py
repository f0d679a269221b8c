"""Pairs of texts that likelihood metrics learn from: read from files, divided, and as tensors."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from metrist.data.splits import group_by_shared_texts, hold_out, parse_share
from metrist.errors import InputError, ModelError, agree, format_count
from metrist.io.batches import Skipped
from metrist.io.compression import STANDARD_INPUT, decode_line, open_bytes, uncompressed_name
from metrist.io.fields import as_text, as_texts, is_number, rename_rows
from metrist.io.row_model import RowError, format_value
from metrist.io.rows import open_source
from metrist.io.table_rows import Cells, parse_cells
from metrist.models.batching import pad_rows
from metrist.models.tokenization import TokenizerSide, token_limit
from metrist.models.weights import file_digest
from metrist.train.task import IGNORED, Examples

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
#: (condition, target)
TextPair = tuple[str, str]

_EXPECTED_FIELDS = (
    "'text' and 'summary', 'source' and 'target', 'first' and 'second' (paraphrases), or 'source' and 'references'"
)
_SHOWN_FIELDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFile:
    """The distinct pairs of a file. `repeated` counts the duplicates; `sha256` is the hash of the file as stored. Of a
    large file only a sample of the rows is kept; `not_drawn` counts the others."""

    name: str
    sha256: str
    rows: int
    pairs: tuple[TextPair, ...]
    repeated: int
    skipped: Skipped
    not_drawn: int = 0

    def describe(self) -> dict[str, Any]:
        return {
            "file": Path(self.name).name,
            "sha256": self.sha256,
            "rows": self.rows,
            "pairs": len(self.pairs),
            "repeated": self.repeated,
            "skipped": self.skipped.count,
        }


def read_pairs(
    path: str | os.PathLike[str],
    *,
    skip_bad: bool = False,
    sample: int = 0,
    seed: int = 0,
    fields: Mapping[str, str] | None = None,
) -> PairFile:
    """Read JSONL, CSV, TSV or Parquet, also compressed. A paraphrase gives a pair in each direction, a record one pair
    per reference. The first bad row is an error unless `skip_bad` is set; then bad rows are skipped and counted.
    `fields` maps fields to columns of another name.

    ParaBank2's raw file is known by its first line; of it, at most `sample` lines are drawn while it is read (0: all),
    since its 19.7 million lines would not fit into memory.
    """
    if os.fspath(path) == STANDARD_INPUT:
        raise InputError(
            "training data must be a file, not standard input: a resumed training reads it again", code="invalid_value"
        )
    source, skipped = open_source(path), Skipped()
    is_parabank = _is_parabank(path)
    read = enumerate(_read_lines(path), 1) if is_parabank else rename_rows(source.read(), fields or {}, source.name)
    parse: Callable[[Any], list[TextPair]] = _parse_paraphrases if is_parabank else _parse_row
    rows = 0

    def parse_rows() -> Iterator[list[TextPair]]:
        nonlocal rows
        for line, row in read:
            try:
                row_pairs = parse(row)
            except RowError as fault:
                message = f"{source.location(line)}: {fault}"
                if not skip_bad:
                    raise InputError(message) from None
                skipped.add(message)
                continue
            rows += 1
            yield row_pairs

    kept: Iterable[list[TextPair]] = parse_rows()
    if is_parabank and sample:
        kept = _draw_rows(kept, sample, np.random.default_rng([seed, 4]))
    pairs: dict[TextPair, None] = {}
    count = used = 0
    for row_pairs in kept:
        used, count = used + 1, count + len(row_pairs)
        pairs.update(dict.fromkeys(row_pairs))
    if not pairs:
        raise InputError(
            f"{source.name}: has no pairs to learn from; expected rows with {_EXPECTED_FIELDS}", code="no_data"
        )
    return PairFile(
        name=str(source.name),
        sha256=file_digest(Path(path)),
        rows=rows,
        pairs=tuple(pairs),
        repeated=count - len(pairs),
        skipped=skipped,
        not_drawn=rows - used,
    )


def _draw_rows(rows: Iterable[T], count: int, rng: np.random.Generator) -> list[T]:
    """Draw rows at random while they are read, each with the same chance, and keep their order."""
    kept: list[tuple[int, T]] = []
    for number, row in enumerate(rows):
        if number < count:
            kept.append((number, row))
        elif (place := int(rng.integers(number + 1))) < count:
            kept[place] = number, row
    return [row for _, row in sorted(kept, key=itemgetter(0))]


# ParaBank2: a line has a score, a reference and its one to five paraphrases, separated by tabs, without a header and
# without quoting.


def _is_parabank(path: str | os.PathLike[str]) -> bool:
    if Path(uncompressed_name(path)).suffix.lower() not in (".tsv", ".txt") or not Path(path).is_file():
        return False
    with suppress(RowError):
        score, *texts = decode_line(next(_read_lines(path), b"")).split("\t")
        return len(texts) > 1 and is_number(score) and not any(map(is_number, texts))
    return False


def _read_lines(path: str | os.PathLike[str]) -> Iterator[bytes]:
    with open_bytes(path) as file:
        yield from file


def _parse_paraphrases(line: bytes) -> list[TextPair]:
    text = decode_line(line).rstrip("\t\r\n")
    score, *texts = text.split("\t")
    if not is_number(score) or len(texts) < 2 or not all(map(str.strip, texts)):
        raise RowError(
            f"must have a score, a reference and its paraphrases, separated by tabs, got {format_value(text)}"
        )
    reference, *paraphrases = texts
    return [pair for text in paraphrases for pair in ((reference, text), (text, reference))]


def _parse_row(row: Any) -> list[TextPair]:
    if isinstance(row, RowError):
        raise row
    if type(row) is Cells:
        row = parse_cells(row)
    if "text" in row and "summary" in row:
        return [(_get_text("text", row), _get_text("summary", row))]
    if "source" in row and "target" in row:
        return [(_get_text("source", row), _get_text("target", row))]
    if "first" in row and "second" in row:
        first, second = _get_text("first", row), _get_text("second", row)
        return [(first, second), (second, first)]
    if "source" in row and ("references" in row or "reference" in row):
        source = _get_text("source", row)
        if row.get("references") is None:
            return [(source, _get_text("reference", row))]
        references = as_texts("references", row["references"])
        if not references:
            raise RowError("'references' is empty: there is nothing to learn from")
        if not all(text.strip() for text in references):
            raise RowError("'references' has an empty text: training needs text on both sides")
        return [(source, reference) for reference in references]
    names = ", ".join(map(format_value, list(row)[:_SHOWN_FIELDS])) + (", …" if len(row) > _SHOWN_FIELDS else "")
    raise RowError(f"has no pair of texts: expected {_EXPECTED_FIELDS}; its fields are {names or 'none'}")


def _get_text(field: str, row: dict[str, Any]) -> str:
    text = as_text(field, row[field])
    if not text.strip():
        raise RowError(f"{field!r} is empty: training needs text on both sides")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPairData:
    """Training and development pairs. `dev_file` is None if the development pairs were split off the training data.
    `not_drawn` counts training pairs left out of the sample; `shared` counts development pairs that have a text in
    common with the training pairs."""

    files: tuple[PairFile, ...]
    train: tuple[TextPair, ...]
    dev: tuple[TextPair, ...] = ()
    dev_file: PairFile | None = None
    not_drawn: int = 0
    shared: int = 0

    def remarks(self) -> list[str]:
        remarks = []
        for file in (*self.files, *((self.dev_file,) if self.dev_file else ())):
            remarks += [f"skipped: {message}" for message in file.skipped.messages]
            if file.skipped.count:
                remarks.append(f"{file.name}: skipped {format_count(file.skipped.count, 'bad row')} in total")
            if file.not_drawn:
                remarks.append(
                    f"{file.name}: ParaBank2's raw file; {file.rows - file.not_drawn:,} of {file.rows:,} lines are "
                    "drawn at random (`pairs=0` uses all)"
                )
            if file.repeated:
                remarks.append(f"{file.name}: {file.repeated:,} duplicate pairs are ignored")
        if self.not_drawn:
            remarks.append(
                f"{format_count(len(self.train), 'pair is', 'pairs are')} drawn at random, {self.not_drawn:,} "
                f"{agree(self.not_drawn, 'is', 'are')} left out (`pairs=0` uses all)"
            )
        if self.shared:
            remarks.append(
                f"{self.shared:,} of {len(self.dev):,} development pairs share a text with the training data"
            )
        return remarks


def load_text_pairs(
    data: Sequence[Path],
    dev: str | None,
    *,
    count: int,
    seed: int,
    skip_bad: bool,
    fields: Mapping[str, str] | None = None,
) -> TextPairData:
    """Read the training pairs, split off a share of them for development or read it from another file, and draw at most
    `count` of the rest. The split comes first, so that `count` does not change the development pairs, except those of
    ParaBank2: of that only as many lines are kept as give `count` pairs in any case."""
    share = parse_share(dev)
    sample = math.ceil(count / (1 - (share or 0)))
    files = tuple(read_pairs(path, skip_bad=skip_bad, sample=sample, seed=seed, fields=fields) for path in data)
    pairs: list[TextPair] = list(dict.fromkeys(pair for file in files for pair in file.pairs))
    dev_pairs: list[TextPair] = []
    dev_file = None
    if share is not None:
        pairs, dev_pairs = split_text_pairs(pairs, share, seed)
    elif dev is not None:
        dev_file = read_pairs(dev, skip_bad=skip_bad, fields=fields)
        dev_pairs = list(dev_file.pairs)
    if not pairs:
        raise InputError(
            "nothing is left to train on after the development split; give more pairs", code="too_little_data"
        )
    drawn = sample_pairs(pairs, count, seed)
    seen = {text for pair in drawn for text in pair}
    return TextPairData(
        files=files,
        train=tuple(drawn),
        dev=tuple(dev_pairs),
        dev_file=dev_file,
        not_drawn=len(pairs) - len(drawn),
        shared=sum(bool(seen.intersection(pair)) for pair in dev_pairs),
    )


def split_text_pairs(pairs: Sequence[TextPair], share: float, seed: int) -> tuple[list[TextPair], list[TextPair]]:
    """Split into training and development pairs, in their original order. Pairs that share a text on either side stay
    together, so no development text occurs in training; the share is reached as closely as that allows."""
    chosen = hold_out(pairs, share, np.random.default_rng([seed, 1]))
    if not chosen:
        smallest = min(map(len, group_by_shared_texts(pairs)))
        raise InputError(
            f"cannot split off {share:g} of {len(pairs):,} pairs: the smallest group that shares texts has "
            f"{smallest:,}; give a file as `dev`, or a larger share",
            code="too_little_data",
        )
    train = [pair for number, pair in enumerate(pairs) if number not in chosen]
    return train, [pairs[number] for number in sorted(chosen)]


def sample_pairs(pairs: Sequence[TextPair], count: int, seed: int) -> list[TextPair]:
    """Draw at most `count` pairs at random, in their original order; all of them if `count` is 0."""
    if not count or len(pairs) <= count:
        return list(pairs)
    drawn = np.random.default_rng([seed, 2]).choice(len(pairs), size=count, replace=False)
    return [pairs[number] for number in np.sort(drawn)]


# ---- Tokens

_CHUNK = 1_000
#: Texts are cut here if neither the model nor the tokenizer has a limit and the user sets none.
_DEFAULT_MAX_LENGTH = 2_048
Row = NDArray[np.int32]


class TokenCut(NamedTuple):
    """The numbers of truncated conditions and targets, and of the tokens removed from them."""

    conditions: int
    targets: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenPairs(Examples):
    """Examples for the training loop. An example's weight is the length of its target: the loss is a mean over
    tokens."""

    conditions: list[Row]
    targets: list[Row]
    lengths: NDArray[np.int64]
    weights: NDArray[np.float64]
    pad: int
    cut: TokenCut

    def collate(self, indices: NDArray[np.int64]) -> dict[str, Tensor]:
        import torch

        ids, mask = pad_rows([self.conditions[number] for number in indices], self.pad)
        labels, _ = pad_rows([self.targets[number] for number in indices], IGNORED)
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask),
            "labels": torch.from_numpy(labels),
        }


def encode_text_pairs(
    tokenizer: Any, config: Any, pairs: Sequence[TextPair], max_length: int | None = None
) -> TokenPairs:
    """Tokenize both sides as scoring does."""
    # The limits that scoring uses: a position table is a hard limit, other values are recommendations.
    positions = getattr(config, "max_position_embeddings", None)
    recommended = max_length or token_limit(tokenizer) or getattr(config, "n_positions", None)
    limits = []
    for name in ("max_encoder_position_embeddings", "max_decoder_position_embeddings"):
        table = getattr(config, name, positions)
        limits.append(min(recommended or table or _DEFAULT_MAX_LENGTH, table or sys.maxsize))
    conditions, cut_conditions, removed = _encode_side(
        TokenizerSide(tokenizer), [condition for condition, _ in pairs], limits[0]
    )
    targets, cut_targets, removed_from_targets = _encode_side(
        TokenizerSide(tokenizer, target=True), [target for _, target in pairs], limits[1]
    )
    weights = np.array([len(target) for target in targets], np.float64)
    pad = getattr(config, "pad_token_id", None) if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    if pad is None:
        raise ModelError(
            "the base model has no padding token: neither its tokenizer nor config.json sets 'pad_token_id'",
            code="conflict",
        )
    return TokenPairs(
        conditions=conditions,
        targets=targets,
        lengths=np.array([len(condition) for condition in conditions], np.int64) + weights.astype(np.int64),
        weights=weights,
        pad=int(pad),
        cut=TokenCut(cut_conditions, cut_targets, removed + removed_from_targets),
    )


def _encode_side(side: TokenizerSide, texts: Sequence[str], limit: int) -> tuple[list[Row], int, int]:
    """Return each text's tokens, the number of truncated texts and the number of removed tokens."""
    rows: list[Row] = []
    cut = removed = 0
    for start in range(0, len(texts), _CHUNK):
        for ids in side.ids(texts[start : start + _CHUNK]):
            cut, removed = cut + (len(ids) > limit), removed + max(0, len(ids) - limit)
            rows.append(side.cut(ids, limit).astype(np.int32))
    return rows, cut, removed
