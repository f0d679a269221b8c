"""How a reward model reads an answer: instruction, fields of the context and answer, as one row of tokens.

    prefix instruction separator field separator … separator answer suffix

With labels, each field's name comes before its text, with a separator between them. A row that is too long loses tokens
of its context; instruction and answer stay complete. `RewardSettings` stores these choices in the model's
`reward.json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from metrist.documents import read_json_object
from metrist.errors import ModelError
from metrist.models.numpy_inference import storage
from metrist.models.tokenization import PROBES, replace_surrogates

#: (label, text) of each field; the last one is the answer.
Fields = tuple[tuple[str, str], ...]
#: Encodes texts without special tokens.
Encode = Callable[[Sequence[str]], list[list[int]]]
Keep = Literal["end", "start", "both"]
Pooling = Literal["answer", "mean", "first", "last"]

#: The file of a model's `RewardSettings`, and the key with its version.
NAME = "reward.json"
KEY = "metrist_reward"
#: The file with the weights of the reward head: 'weight' (1 × width) and 'bias' (1).
HEAD = "reward_head.safetensors"

_TokenIds = tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
_CHUNK = 1_000


class RewardInput(NamedTuple):
    """An answer with its context and an instruction, which says what makes an answer good."""

    instruction: str
    fields: Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardLayout:
    """`labelled` puts the names of fields before them. `max_length` limits all tokens of a row (None: no limit); `keep`
    says which side of a long context stays: with 'both', its middle is cut."""

    labelled: bool = False
    max_length: int | None = 512
    keep: Keep = "end"

    def __post_init__(self) -> None:
        if self.max_length is not None and self.max_length < 1:
            raise ModelError(f"a layout's max_length must be at least 1, got {self.max_length}", code="invalid_value")
        if self.keep not in ("end", "start", "both"):
            raise ModelError(
                f"a layout's keep must be 'end', 'start' or 'both', got {self.keep!r}", code="invalid_value"
            )


@dataclass(frozen=True, slots=True)
class RewardFrame:
    """Special tokens around a row and between its parts."""

    prefix: _TokenIds
    separator: _TokenIds
    suffix: _TokenIds


class RewardRows(NamedTuple):
    """Rows of tokens; the number of tokens cut from each; where each answer begins; and the number of each answer's
    tokens that the tokenizer knows."""

    ids: list[NDArray[np.int32]]
    cut: list[int]
    starts: list[int]
    read: list[int]


def build_rows(
    encode: Encode, frame: RewardFrame, layout: RewardLayout, inputs: Sequence[RewardInput], unknown: int | None = None
) -> RewardRows:
    """Build the rows of all inputs; every distinct text is tokenized once. `unknown` is the token for unknown words. An
    answer that does not fit after its instruction is cut at its end."""
    distinct: dict[str, None] = {}
    for item in inputs:
        if not item.fields:
            raise ModelError("an input has no fields; its last field must be the answer", code="invalid_value")
        labels = [label for label, _ in item.fields] if layout.labelled else []
        distinct |= dict.fromkeys([item.instruction, *labels, *(text for _, text in item.fields)])
    texts = list(distinct)
    ids: dict[str, list[int]] = {}
    for start in range(0, len(texts), _CHUNK):
        part = texts[start : start + _CHUNK]
        ids.update(zip(part, encode(part), strict=True))
    rows = [_build_row(item, ids, frame, layout) for item in inputs]
    answers = [ids[item.fields[-1][1]] for item in inputs]
    read = [sum(token != unknown for token in answer) for answer in answers]
    tokens, cut, starts = zip(*rows, strict=True) if rows else ((), (), ())
    return RewardRows([np.array(row, np.int32) for row in tokens], list(cut), list(starts), read)


class Rewards(NamedTuple):
    """The reward of each answer, the number of tokens cut from its row, and the number of the answer's tokens that the
    model knows: if it knows none, the reward says nothing about the answer."""

    values: NDArray[np.float64]
    cut: NDArray[np.int64]
    read: NDArray[np.int64]


def score_rows(
    encode: Encode,
    settings: RewardSettings,
    inputs: Sequence[RewardInput],
    unknown: int | None,
    compute: Callable[[list[NDArray[np.int32]], list[int]], NDArray[np.float64]],
) -> Rewards:
    """Return one reward per input, in order. `compute` gets the row of each distinct one, and where its answer
    begins."""
    numbers = {item: at for at, item in enumerate(dict.fromkeys(inputs))}
    rows = build_rows(encode, settings.frame, settings.layout, list(numbers), unknown)
    values = compute(rows.ids, rows.starts)
    order = np.array([numbers[item] for item in inputs], np.int64)
    return Rewards(values[order], np.array(rows.cut, np.int64)[order], np.array(rows.read, np.int64)[order])


def _build_row(
    item: RewardInput, ids: dict[str, list[int]], frame: RewardFrame, layout: RewardLayout
) -> tuple[list[int], int, int]:
    separator = list(frame.separator)
    *context_fields, (label, answer_text) = item.fields
    instruction = _join([ids[item.instruction]], separator)
    answer_label = _join([ids[label]] if layout.labelled else [], separator)
    context_texts = [text for field in context_fields for text in (field if layout.labelled else field[1:])]
    context = _join([ids[text] for text in context_texts], separator)
    answer = ids[answer_text]
    total = len(instruction) + len(context) + len(answer_label) + len(answer)
    if layout.max_length is not None:
        fixed = len(instruction) + len(answer_label)
        room = layout.max_length - len(frame.prefix) - len(frame.suffix) - fixed
        if room < 1:
            shown = item.instruction if len(item.instruction) <= 60 else f"{item.instruction[:60]}…"
            raise ModelError(
                f"the instruction {shown!r} takes {fixed:,} of {layout.max_length:,} tokens and leaves no "
                "room for an answer; shorten it",
                code="invalid_value",
            )
        answer = answer[:room]
        room -= len(answer)
        if len(context) > room:
            # As much as fits, with the separator at its end.
            if room <= len(separator):
                context = []
            elif layout.keep == "start":
                context = [*context[: room - len(separator)], *separator]
            else:
                first = room // 2 if layout.keep == "both" else 0
                context = [*context[:first], *context[first - room :]]
    before = [*instruction, *context, *answer_label]
    # A model cannot read an empty row.
    row = [*frame.prefix, *before, *answer, *frame.suffix] or separator
    # An empty answer without a suffix begins at the last token.
    start = min(len(frame.prefix) + len(before), len(row) - 1)
    return row, total - len(before) - len(answer), start


def _join(parts: Sequence[list[int]], separator: list[int]) -> list[int]:
    """Concatenate the parts that have tokens, each followed by the separator."""
    return [token for part in parts if part for token in (*part, *separator)]


# ---- Tokenizers


def token_encoder(tokenizer: Any) -> Encode:
    """Return a function that encodes texts without special tokens, from a transformers tokenizer or a
    tokenizers.Tokenizer. A text that spells a special token, such as '[SEP]', is read as ordinary characters."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)

    def encode(texts: Sequence[str]) -> list[list[int]]:
        clean = [replace_surrogates(text) for text in texts]
        settings = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        return [list(row) for row in tokenizer(clean, **settings)["input_ids"]] if clean else []

    def encode_fast(texts: Sequence[str]) -> list[list[int]]:
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        clean = [replace_surrogates(text) for text in texts]
        return [list(encoding.ids) for encoding in backend.encode_batch_fast(clean, add_special_tokens=False)]

    if not hasattr(backend, "encode_batch_fast"):
        return encode
    return encode_fast if backend is tokenizer or encode_fast(PROBES) == encode(PROBES) else encode


def unknown_id(tokenizer: Any) -> int | None:
    """Return the id of the unknown token of a transformers tokenizer or a tokenizers.Tokenizer; None if it has none."""
    if callable(tokenizer):
        return getattr(tokenizer, "unk_token_id", None)
    name = getattr(tokenizer.model, "unk_token", None)
    return tokenizer.token_to_id(name) if name else None


def read_frame(tokenizer: Any) -> RewardFrame:
    """Return the special tokens that the tokenizer puts around a text and between two. If it puts none between them:
    its separator token, else a line break, else its end token."""
    encode = token_encoder(tokenizer)
    first, second = encode(["a", "b"])
    single, pair = _encode_with_special(tokenizer, "a"), _encode_with_special(tokenizer, "a", "b")
    start = _find_part(first, single)
    end = start + len(first)
    prefix, suffix = single[:start], single[end:]
    between = pair[end : end + _find_part(second, pair[end:])]
    # Some tokenizers repeat the token that begins a text before the second one, which separates nothing.
    if not between or between == prefix:
        known = (getattr(tokenizer, "sep_token_id", None), getattr(tokenizer, "eos_token_id", None))
        separator, last = ([] if token is None else [int(token)] for token in known)
        between = separator or encode(["\n"])[0] or last
    return RewardFrame(tuple(prefix), tuple(between), tuple(suffix))


def _encode_with_special(tokenizer: Any, *texts: str) -> list[int]:
    ids = tokenizer(*texts, verbose=False)["input_ids"] if callable(tokenizer) else tokenizer.encode(*texts).ids
    return [int(token) for token in ids]


def _find_part(part: list[int], tokens: list[int]) -> int:
    return next((at for at in range(len(tokens)) if tokens[at : at + len(part)] == part), 0)


# ---- Settings

_LARGEST = sys.float_info.max
#: What a file must have beside pooling and frame.
_REQUIRED = ("labelled", "max_length", "keep", "criteria", "centre", "spread")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSettings:
    """How answers are read, and facts about the rewards. `criteria` maps each criterion to the instruction it was
    learned with, `fields` to the labels of its most common context and answer; `centre` and `spread` are the mean and
    standard deviation of the rewards of training answers."""

    pooling: Pooling
    layout: RewardLayout
    frame: RewardFrame
    criteria: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]] = field(default_factory=dict)
    centre: Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)] = 0.0
    #: 0 if the model gives all answers the same reward.
    spread: Annotated[float, msgspec.Meta(ge=0, le=_LARGEST)] = 1.0

    def within(self, limit: int) -> RewardSettings:
        """Return the settings for a model that reads at most this many tokens."""
        return replace(self, layout=replace(self.layout, max_length=min(self.layout.max_length or limit, limit)))

    def write(self, folder: Path) -> None:
        facts = {KEY: 1, **asdict(self)}
        (folder / NAME).write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @staticmethod
    def read(folder: Path, name: str) -> RewardSettings:
        """Read the settings of a model's folder; `name` is the user's name for it."""
        path = folder / NAME
        if not path.is_file():
            raise ModelError(
                f"{name} has no {NAME}, so it is no preference model; `metrist train preference` trains one from it",
                code="invalid_value",
            )
        try:
            facts = read_json_object(path, ModelError)
            if facts.get(KEY) != 1:
                raise ModelError(f"`{KEY}` must be 1, got {facts.get(KEY)!r:.50}")
            settings = msgspec.convert(facts, RewardSettings)
            # A default for a lost setting would change the rewards.
            if lost := [name for name in _REQUIRED if name not in {**facts, **facts["layout"]}]:
                raise ModelError(f"`{lost[0]}` is missing")
            return settings
        except (ModelError, msgspec.ValidationError) as fault:
            # Trainings write folders for torch, exports those for numpy.
            exported = (folder / storage.WEIGHTS).is_file()
            repair = storage.suggest_repair(folder) if exported else "train the model again"
            raise ModelError(f"{path} cannot be used ({fault}); {repair}", code="unreadable") from None
