"""How a reward model reads an answer: an instruction, the fields of its context and the answer, as one row of tokens.

    prefix instruction separator field separator … separator answer suffix

With labels, each field's name stands before its text, with a separator between them. What is too long loses tokens of
its context; instruction and answer stay whole.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from metrist.errors import ModelError
from metrist.models.numpy_inference import storage
from metrist.models.numpy_inference.storage import suggest_repair
from metrist.models.tokenization import replace_surrogates

#: (label, text) of each field; the last one is the answer.
Fields = tuple[tuple[str, str], ...]
Encode = Callable[[Sequence[str]], list[list[int]]]
Keep = Literal["end", "start", "both"]

_PROBES = ["a", "A small cat sat on the mat, twice.", " Zürich  is\n2 far – ", ""]
_CHUNK = 1_000


class RewardInput(NamedTuple):
    """An answer with what it is judged by: the instruction says what is asked of it."""

    instruction: str
    fields: Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """`labelled`: fields have their names before them. `max_length` counts all tokens of a row (None: no limit);
    `keep` says which side of a context stays where it is too long; with 'both' its middle goes."""

    labelled: bool = False
    max_length: int | None = 512
    keep: Keep = "end"

    def __post_init__(self) -> None:
        if self.max_length is not None and self.max_length < 1:
            raise ModelError(f"a layout's max_length must be at least 1, got {self.max_length}")
        if self.keep not in ("end", "start", "both"):
            raise ModelError(f"a layout keeps the 'end' or the 'start' of a long context, or 'both', got {self.keep!r}")


class Frame(NamedTuple):
    """Tokens around a row and between its parts."""

    prefix: tuple[int, ...]
    separator: tuple[int, ...]
    suffix: tuple[int, ...]


class RewardRows(NamedTuple):
    """Rows of tokens, how many tokens were left out of each, where in a row its answer begins, and how many tokens of
    the answer stand for something that the tokenizer knows."""

    ids: list[NDArray[np.int32]]
    cut: list[int]
    starts: list[int]
    read: list[int]


def build_rows(
    encode: Encode, frame: Frame, layout: Layout, judged: Sequence[RewardInput], unknown: int | None = None
) -> RewardRows:
    """The rows of all answers; every distinct text is tokenised once. `encode` adds no special tokens; `unknown` is the
    one it has for what it does not know. An answer that does not fit beside its instruction is cut at its end."""
    known = _encoded(encode, judged, layout)
    rows = [_row(one, known, frame, layout) for one in judged]
    answers = [known[one.fields[-1][1]] for one in judged]
    read = [sum(token != unknown for token in answer) for answer in answers]
    ids, cut, starts = zip(*rows, strict=True) if rows else ((), (), ())
    return RewardRows([np.array(row, np.int32) for row in ids], list(cut), list(starts), read)


def _encoded(encode: Encode, judged: Sequence[RewardInput], layout: Layout) -> dict[str, list[int]]:
    texts = list(dict.fromkeys(text for one in judged for text in _texts(one, layout)))
    known: dict[str, list[int]] = {}
    for start in range(0, len(texts), _CHUNK):
        part = texts[start : start + _CHUNK]
        known.update(zip(part, encode(part), strict=True))
    return known


def _texts(one: RewardInput, layout: Layout) -> Iterable[str]:
    if not one.fields:
        raise ModelError("an answer to be judged has no fields; the last field is the answer itself")
    yield one.instruction
    for label, text in one.fields:
        if layout.labelled:
            yield label
        yield text


def _row(one: RewardInput, known: dict[str, list[int]], frame: Frame, layout: Layout) -> tuple[list[int], int, int]:
    """A row, the number of tokens left out of it, and where its answer begins."""
    between = list(frame.separator)
    *context, (label, answer) = one.fields
    opening = _joined([known[one.instruction]], between)
    labelled = [known[label]] if layout.labelled else []
    before_answer = _joined(labelled, between)
    told = [known[text] for field in context for text in (field if layout.labelled else field[1:])]
    middle, last = _joined(told, between), known[answer]
    whole = len(opening) + len(middle) + len(before_answer) + len(last)
    if layout.max_length is not None:
        room = layout.max_length - len(frame.prefix) - len(frame.suffix) - len(opening) - len(before_answer)
        if room < 1:
            raise ModelError(_no_room(one.instruction, len(opening) + len(before_answer), layout.max_length))
        last = last[:room]
        middle = _kept(middle, room - len(last), between, layout)
    before = [*opening, *middle, *before_answer]
    # A model can make nothing of no tokens at all.
    row = [*frame.prefix, *before, *last, *frame.suffix] or between
    # An empty answer in a frame without an end begins, for want of better, at the last token there is.
    start = min(len(frame.prefix) + len(before), len(row) - 1)
    return row, whole - len(before) - len(last), start


def _joined(parts: Sequence[list[int]], between: list[int]) -> list[int]:
    """The parts that have tokens, each followed by the separator."""
    return [token for part in parts if part for token in (*part, *between)]


def _kept(middle: list[int], room: int, between: list[int], layout: Layout) -> list[int]:
    """As much of a context as fits, with the separator that ends it."""
    if len(middle) <= room:
        return middle
    if room <= len(between):
        return []
    if layout.keep == "start":
        return [*middle[: room - len(between)], *between]
    first = room // 2 if layout.keep == "both" else 0
    return [*middle[:first], *middle[first - room :]]


def _no_room(instruction: str, taken: int, max_length: int) -> str:
    shown = instruction if len(instruction) <= 60 else f"{instruction[:60]}…"
    return (
        f"the instruction {shown!r} takes {taken:,} of {max_length:,} tokens and leaves no room for an answer; "
        "shorten it, or raise max_length where the model takes more"
    )


def token_encoder(tokenizer: Any) -> Encode:
    """What gives texts' ids without special tokens, of a tokenizer of transformers or a tokenizers.Tokenizer. A text
    that spells a special token, such as '[SEP]', is read as the letters it has."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(backend, "encode_batch_fast"):
        return _called(tokenizer)
    fast = _fast(backend)
    if backend is tokenizer or fast(_PROBES) == _called(tokenizer)(_PROBES):
        return fast
    return _called(tokenizer)


def unknown_id(tokenizer: Any) -> int | None:
    """The token for what the tokenizer does not know, where it has one: of transformers or a tokenizers.Tokenizer."""
    if callable(tokenizer):
        return getattr(tokenizer, "unk_token_id", None)
    named = getattr(tokenizer.model, "unk_token", None)
    return tokenizer.token_to_id(named) if named else None


def _called(tokenizer: Any) -> Encode:
    def encode(texts: Sequence[str]) -> list[list[int]]:
        clean = [replace_surrogates(text) for text in texts]
        asked = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        return [list(row) for row in tokenizer(clean, **asked)["input_ids"]] if clean else []

    return encode


def _fast(backend: Any) -> Encode:
    def encode(texts: Sequence[str]) -> list[list[int]]:
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        clean = [replace_surrogates(text) for text in texts]
        return [list(one.ids) for one in backend.encode_batch_fast(clean, add_special_tokens=False)]

    return encode


def read_frame(tokenizer: Any) -> Frame:
    """The special tokens that the tokenizer puts around a text and between two. Where it puts nothing between them: its
    separator token, else a line break, else its end token."""
    bare = token_encoder(tokenizer)
    one, other = bare(["a", "b"])
    single, pair = _special(tokenizer, "a"), _special(tokenizer, "a", "b")
    start = _place(one, single)
    prefix, suffix = single[:start], single[start + len(one) :]
    after = start + len(one)
    between = pair[after : after + _place(other, pair[after:])]
    # Some put the token that begins a text before the second one too, which separates nothing.
    if not between or between == prefix:
        between = _separator(tokenizer, bare)
    return Frame(tuple(prefix), tuple(between), tuple(suffix))


def _special(tokenizer: Any, *texts: str) -> list[int]:
    found = tokenizer(*texts, verbose=False)["input_ids"] if callable(tokenizer) else tokenizer.encode(*texts).ids
    return [int(one) for one in found]


def _separator(tokenizer: Any, bare: Encode) -> list[int]:
    named = getattr(tokenizer, "sep_token_id", None)
    if named is not None:
        return [int(named)]
    line = bare(["\n"])[0]
    end = getattr(tokenizer, "eos_token_id", None)
    return line or ([int(end)] if end is not None else [])


def _place(part: list[int], whole: list[int]) -> int:
    """Where the part begins in the whole; 0 where it does not."""
    return next((at for at in range(len(whole)) if whole[at : at + len(part)] == part), 0)


# What a reward model's folder says beside its weights: `reward.json`.


Pooling = Literal["answer", "mean", "first", "last"]

#: The file's name, and the key by which it is known.
NAME = "reward.json"
KEY = "metrist_reward"
#: The file with the weights that turn a vector into a reward: 'weight' (1 × width) and 'bias' (1).
HEAD = "reward_head.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSettings:
    """How answers are read, and what is known of the rewards. `criteria` has the instruction that each criterion was
    learned with, `fields` the labels of what was mostly shown for it, the answer's last; `centre` and `spread` are mean
    and standard deviation of the rewards of training answers."""

    pooling: Pooling
    layout: Layout
    frame: Frame
    criteria: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    centre: float = 0.0
    spread: float = 1.0

    def write(self, folder: Path) -> None:
        """Put them into a model's folder."""
        facts = {KEY: 1, **asdict(self), "frame": self.frame._asdict()}
        (folder / NAME).write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @staticmethod
    def read(folder: Path, name: str) -> RewardSettings:
        """Those of a model's folder; `name` is what the user called it."""
        path = folder / NAME
        if not path.is_file():
            raise ModelError(
                f"{name} has no {NAME}, so it is no preference model; `metrist train preference --base {name}` makes "
                "one of it"
            )
        try:
            return RewardSettings.of(json.loads(path.read_text(encoding="utf-8")))
        except ModelError as fault:
            raise ModelError(f"{path} cannot be used ({fault}); {_advice(folder)}") from None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as fault:
            raise ModelError(f"{path} cannot be used ({type(fault).__name__}: {fault}); {_advice(folder)}") from None

    @staticmethod
    def of(facts: Mapping[str, Any]) -> RewardSettings:
        """From what JSON gave."""
        if _mapping("the file", facts)[KEY] != 1:
            raise ValueError(f"{KEY} is {facts[KEY]}, and this metrist knows 1")
        if facts["pooling"] not in get_args(Pooling):
            raise ValueError(f"pooling is {facts['pooling']!r}, and this metrist knows {', '.join(get_args(Pooling))}")
        frame = _mapping("frame", facts["frame"])
        # A model that gives all answers the same reward has a spread of 0.
        if (spread := _number("spread", facts["spread"])) < 0:
            raise ValueError(f"spread must be at least 0, got {spread}")
        return RewardSettings(
            pooling=facts["pooling"],
            layout=_layout(facts["layout"]),
            frame=Frame(*(_ids(part, frame[part]) for part in Frame._fields)),
            criteria={name: _text(name, said) for name, said in _mapping("criteria", facts["criteria"]).items()},
            fields={name: _labels(name, said) for name, said in _mapping("fields", facts.get("fields", {})).items()},
            centre=_number("centre", facts["centre"]),
            spread=spread,
        )


def _advice(folder: Path) -> str:
    """What helps with a folder at fault: a training writes one for torch, an export one in metrist's own form."""
    return suggest_repair(folder) if (folder / storage.WEIGHTS).is_file() else "train the model again"


def _layout(given: Any) -> Layout:
    # All are asked for: a default in place of a lost one would give other rewards than the model learned.
    labelled, longest, keep = (_mapping("layout", given)[key] for key in ("labelled", "max_length", "keep"))
    if not isinstance(labelled, bool):
        raise ValueError(f"layout.labelled must be true or false, got {labelled!r}")
    if longest is not None and type(longest) is not int:
        raise ValueError(f"layout.max_length must be a whole number or null, got {longest!r}")
    return Layout(labelled=labelled, max_length=longest, keep=keep)


def _ids(part: str, given: Any) -> tuple[int, ...]:
    # A bool is an int to Python.
    if not isinstance(given, list) or any(type(one) is not int or one < 0 for one in given):
        raise ValueError(f"frame.{part} must be a list of tokens' numbers, got {given!r}")
    return tuple(given)


def _number(key: str, given: Any) -> float:
    if type(given) not in (int, float) or not math.isfinite(given):
        raise ValueError(f"{key} must be a finite number, got {given!r}")
    return float(given)


def _mapping(key: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise ValueError(f"{key} must be an object, got {given!r}")
    return given


def _text(name: str, given: Any) -> str:
    if not isinstance(given, str):
        raise ValueError(f"criteria.{name} must be a text, got {given!r}")
    return given


def _labels(name: str, given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not given or not all(isinstance(one, str) for one in given):
        raise ValueError(f"fields.{name} must be a list of labels, got {given!r}")
    return tuple(given)
