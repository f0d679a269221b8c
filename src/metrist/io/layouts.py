"""Rows with several outputs: wide tables, preferences and conversations.

Each layout turns a row into rows in metrist's own fields. Preferences become rows of two outputs (`systems`, `outputs`)
with the choice as the rating `preference`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any

from metrist.errors import InputError, format_count
from metrist.io.fields import (
    CHOSEN,
    JUDGMENTS,
    REJECTED,
    ColumnMap,
    as_name,
    as_text,
    is_number,
    name_field,
    normalise_name,
    parse_literal,
)
from metrist.io.row_model import RowError, format_value
from metrist.io.table_rows import Cells

#: Rows by which a column is known to hold numbers.
_SAMPLE = 20
#: The aspect of a preference that names none.
PREFERENCE = "preference"
Numbered = Iterator[tuple[int, Any]]
#: The role and the text.
Message = tuple[str, str]

_STEMS = ("conversation", "response", "answer", "output", "completion", "summary", "translation", "generation", "text")
_NAME_STEMS = ("model", "system", "generator", "model_name")
_WINNERS = ("winner", "preference", "preferred", "verdict", "choice", "better")
_MESSAGES = ("messages", "conversation", "conversations")
_ROLES = {
    **dict.fromkeys(("user", "human", "prompter"), "Human"),
    **dict.fromkeys(("assistant", "gpt", "ai", "model"), "Assistant"),
}
_TURN = re.compile(r"(?:^|\n\n)(Human|Assistant):[ \t]?")
_TIES = frozenset(["tie", "tie (bothbad)", "bothbad", "both_bad", "both bad", "both", "c", "[[c]]", "equal"])


@dataclass(slots=True)
class RowLayout:
    """How the rows of one file were converted: for the user, and for rows without an item (`position`)."""

    notes: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    position: int = 0


Convert = Callable[[dict[str, Any]], Sequence[dict[str, Any] | RowError]]


def convert_rows(
    rows: Numbered,
    outputs: Mapping[str, str] | Sequence[str] | str,
    columns: ColumnMap,
    *,
    leave_out: Callable[[str], None] | None = None,
) -> tuple[Numbered, RowLayout | None]:
    """Return rows in metrist's fields. The layout is that of the first row that can be read; None if it needs no
    conversion. Ratings that could belong to any of several outputs are errors, or are left out and the reason is passed
    to `leave_out`."""
    head = []
    sample: list[dict[str, Any]] = []
    for numbered in rows:
        head.append(numbered)
        if isinstance(numbered[1], dict):
            sample.append(numbered[1])
            if len(sample) >= (_SAMPLE if outputs else 1):
                break
    rows = chain(head, rows)
    if not sample:
        return rows, None
    layout = RowLayout()
    convert: Convert | None
    if outputs:
        convert = _WideRows(outputs, columns, layout, sample, leave_out).convert
    else:
        convert = _find_layout(sample[0], columns, layout)
    if convert is None:
        return rows, None

    def convert_each(convert: Convert) -> Numbered:
        for line, row in rows:
            layout.position += 1
            try:
                converted = convert(row) if isinstance(row, dict) else (row,)
            except RowError as error:
                converted = (error,)
            for part in converted:
                yield line, part

    return convert_each(convert), layout


# ---- Wide tables: one column of outputs per system


class _WideRows:
    """Rows with the outputs of several systems in columns of their own."""

    def __init__(
        self,
        outputs: Mapping[str, str] | Sequence[str] | str,
        columns: ColumnMap,
        layout: RowLayout,
        sample: Sequence[dict[str, Any]],
        leave_out: Callable[[str], None] | None,
    ) -> None:
        if columns.fields.get("output"):
            raise InputError(
                "the outputs are named twice: use either `outputs` or `fields={'output': 'COLUMN'}`", code="conflict"
            )
        self._named, self._patterns = _parse_outputs(outputs, {name for row in sample for name in row})
        self._layout = layout
        self._leave_out = leave_out
        self._dropped = {name for name, column in columns.fields.items() if not column}
        # A dropped column `system` must not take the systems' own names with it.
        if columns.fields.get("system") == "":
            columns.release("system")
        first = sample[0]
        self._numbers: set[str] = set()
        chosen = self._choose(first)
        # Scores beside the outputs that a pattern is meant for (v1, v1_score) are no outputs. Where all columns hold
        # numbers, numbers are what was generated.
        matched = [column for column in chosen.values() if column not in self._named.values()]
        present = {c: [row[c] for row in sample if row.get(c) not in (None, "")] for c in matched}
        numbers = [column for column, values in present.items() if values and all(map(is_number, values))]
        if numbers and len(numbers) < len(matched):
            self._numbers = set(numbers)
            chosen = self._choose(first)
        if not chosen:
            pattern = next(iter(self._patterns))
            listed = ", ".join(map(format_value, first))
            raise InputError(f"no column matches {pattern!r}; the columns are {listed}", code="unknown_name")
        layout.notes.append("outputs = " + ", ".join(f"{column} ({system})" for system, column in chosen.items()))
        layout.notes += [f"no outputs but numbers = {', '.join(numbers)}"] if self._numbers else []
        self._seen = chosen
        self._missing = Counter[str]()

    def _choose(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Return system → column for the columns of a row."""
        chosen = dict(self._named)
        for pattern in self._patterns:
            before, _, after = pattern.partition("*")
            for column in row:
                system = column[len(before) : len(column) - len(after)]
                if column in self._numbers:
                    continue
                system = column if system.isdecimal() else system  # A number alone names nothing.
                if column.startswith(before) and column.endswith(after) and len(column) > len(before) + len(after):
                    if chosen.get(system, column) != column:
                        raise InputError(
                            f"two columns are named as outputs of {system!r}: {chosen[system]!r} and {column!r}; name "
                            f"each on its own: `outputs={[chosen[system], column]!r}`"
                        )
                    chosen[system] = column
        return chosen

    def convert(self, row: dict[str, Any]) -> list[dict[str, Any] | RowError]:
        # A pattern matches the columns of earlier rows too: a system without a column here is counted.
        chosen = self._seen = {**self._seen, **self._choose(row)}
        missing = next((column for column in chosen.values() if column not in row), None)
        if missing is not None and (type(row) is Cells or all(column not in row for column in chosen.values())):
            listed = ", ".join(map(format_value, row))
            raise RowError(f"no column {format_value(missing)}, which `outputs` names; the columns are {listed}")
        if "system" in row and "system" not in self._dropped:
            raise RowError(
                "'system' in a row with the outputs of several systems: drop it with `fields={'system': ''}`"
            )
        rest = {
            name: value
            for name, value in row.items()
            if name not in chosen.values() and not (name == "system" and "system" in self._dropped)
        }
        judged = [name for name in rest if name in JUDGMENTS or name.startswith(("rating:", "score:"))]
        judged = [name for name in judged if name not in self._dropped]
        if judged and len(chosen) > 1:
            reason = (
                f"{format_value(judged[0])} in a row with the outputs of several systems: which of them it judges is "
                f"not said; write a row per system, or drop it with {name_field(judged[0], '')}"
            )
            if self._leave_out is None:
                raise RowError(reason)
            self._leave_out(reason)
            rest = {name: value for name, value in rest.items() if name not in judged}
        kind = type(row)
        rows: list[dict[str, Any] | RowError] = []
        for system, column in chosen.items():
            if column not in row:
                self._missing[column] += 1
                self._layout.remarks[:] = [
                    f"{column} is missing in {format_count(count, 'row')}: no output of that system is read there"
                    for column, count in self._missing.items()
                ]
            elif row[column] is None:
                # The outputs of the other systems in the row are read where bad rows are skipped.
                rows.append(
                    RowError(
                        f"{format_value(column)} has no text: fill it with '' to score an empty output, or skip bad "
                        "rows (`skip_bad=True`)"
                    )
                )
            else:
                rows.append(kind({**rest, "system": system, "output": row[column]}))
        return rows


def _parse_outputs(
    outputs: Mapping[str, str] | Sequence[str] | str, columns: Container[str]
) -> tuple[dict[str, str], list[str]]:
    """Return system → column, and the patterns, of `v1=v1_output` and `*_output`. `v1,v2` names two
    columns unless one of `columns` has that name."""
    if isinstance(outputs, Mapping):
        entries = [f"{system}={column}" for system, column in outputs.items()]
    else:
        entries = [outputs] if isinstance(outputs, str) else list(outputs)
        parts = []
        for entry in entries:
            is_column = entry in columns or entry.partition("=")[2] in columns
            parts += [entry] if is_column else entry.split(",")
        entries = parts
    named: dict[str, str] = {}
    patterns: list[str] = []
    for entry in entries:
        system, equals, column = entry.partition("=")
        if equals:
            if not system or not column:
                raise InputError(
                    f"`outputs` must be SYSTEM=COLUMN, or a pattern such as '*_output', got {entry!r}",
                    code="invalid_value",
                )
            if system in named:
                raise InputError(f"`outputs` names the system {system!r} twice", code="invalid_value")
            if column in named.values():
                raise InputError(f"`outputs` names the column {column!r} twice", code="invalid_value")
            named[system] = column
        elif entry.count("*") == 1 and entry != "*":
            patterns.append(entry)
        elif "*" in entry or not entry:
            raise InputError(
                f"`outputs` must be SYSTEM=COLUMN, or a pattern with one *, such as '*_output', got {entry!r}",
                code="invalid_value",
            )
        else:
            named[entry] = entry
    return named, patterns


# ---- Preferences and conversations


def _find_layout(row: dict[str, Any], columns: ColumnMap, layout: RowLayout) -> Convert | None:
    """Return how rows like this one are converted; None if their columns are read as they are."""
    if any(name in row or columns.fields.get(name) for name in ("output", "outputs", "systems")):
        return None
    by_name = {normalise_name(column): column for column in row}
    for side in (CHOSEN, REJECTED):
        if columns.fields.get(side) in row:
            by_name[side] = columns.fields[side]
            columns.release(side)
    if CHOSEN in by_name and REJECTED in by_name:
        return _chosen_layout(row, by_name, layout)
    for suffixes in (("_a", "_b"), ("_1", "_2")):
        stems = [stem for stem in _STEMS if all(stem + suffix in by_name for suffix in suffixes)]
        models = [stem for stem in _NAME_STEMS if all(stem + suffix in by_name for suffix in suffixes)]
        if stems and (models or _find_winners(by_name, suffixes)):
            return _battle_layout(by_name, stems, models, suffixes, layout)
    completions = by_name.get("completions")
    first = next(iter(row[completions]), None) if completions and isinstance(row[completions], list) else None
    if completions and isinstance(first, dict) and "response" in first:
        layout.notes.append(
            f"a row for each of {completions}: system = model, output = response, ratings = annotations"
        )
        return lambda row: _convert_completions(row, completions)
    for name in _MESSAGES:
        if name in by_name and parse_messages(row[by_name[name]]):
            return _messages_layout(row, by_name[name], layout)
    return None


def _chosen_layout(row: dict[str, Any], by_name: Mapping[str, str], layout: RowLayout) -> Convert:
    """`chosen` and `rejected`: texts, transcripts (HH-RLHF) or lists of messages (UltraFeedback)."""
    chosen, rejected = by_name[CHOSEN], by_name[REJECTED]
    models = (by_name.get(f"{side}_model", by_name.get(f"{side}_system")) for side in (CHOSEN, REJECTED))
    names = [name for name in models if name is not None]
    has_names = len(names) == 2
    turns = _parse_turns(row[chosen])
    layout.notes.append(f"preferences = {chosen}, {rejected}")
    if turns and len(turns) > 1:
        layout.notes.append("source = the turns that the two share")
    if not has_names:
        layout.notes.append("systems = first, second (in an order that does not depend on which was chosen)")

    def convert(row: dict[str, Any]) -> list[dict[str, Any]]:
        rest = dict(row)
        sides = _take(rest, chosen), _take(rest, rejected)
        context, outputs = _split_pair(*sides, (chosen, rejected))
        systems = ["first", "second"]
        if has_names:
            systems = [as_name(name, rest.pop(name, None)) for name in names]
        # By a hash of the two texts, so that always choosing the first output is right half of the time.
        digest = hashlib.sha256("\0".join(sorted(outputs)).encode("utf-8", "surrogatepass")).digest()
        is_first = (outputs[0] <= outputs[1]) == (digest[0] % 2 == 0)
        if not is_first:
            outputs = outputs[::-1]
            systems = systems[::-1] if has_names else systems
        # The chosen conversation once more, and a system prompt, which is no system.
        if isinstance(rest.get("messages"), list):
            del rest["messages"]
        prompt = rest.pop("system", None)
        if isinstance(prompt, str) and prompt:
            context.setdefault("instruction", prompt)
        _convert_prompt(rest, context)
        return [_build_pair(row, rest, context, systems, outputs, 1 if is_first else 2)]

    return convert


def _battle_layout(
    by_name: Mapping[str, str], stems: list[str], models: list[str], suffixes: tuple[str, str], layout: RowLayout
) -> Convert:
    """Two outputs in columns of their own, with a column that names the winner (Chatbot Arena and others)."""
    if len(stems) > 1:
        listed = ", ".join(by_name[stem + suffix] for stem in stems for suffix in suffixes)
        raise RowError(
            f"several pairs of columns may be the outputs: {listed}; drop some with `fields={{'COLUMN': ''}}`"
        )
    sides = by_name[stems[0] + suffixes[0]], by_name[stems[0] + suffixes[1]]
    names = (by_name[models[0] + suffixes[0]], by_name[models[0] + suffixes[1]]) if models else ()
    winners = _find_winners(by_name, suffixes)
    layout.notes.append(f"outputs = {', '.join(sides)}")
    layout.notes.append(f"systems = {', '.join(names) if names else ', '.join(suffix[1:] for suffix in suffixes)}")
    if winners:
        layout.notes.append(f"preferences = {', '.join(winners)}")

    def convert(row: dict[str, Any]) -> list[dict[str, Any]]:
        rest = dict(row)
        first, second = _take(rest, sides[0]), _take(rest, sides[1])
        prompts = _parse_list(rest.get(by_name.get("prompt", "")))
        first_turns = _parse_list(first)
        second_turns = _parse_list(second)
        if prompts is not None and first_turns is not None and second_turns is not None:
            # The Arena's newer files have lists of turns, written as JSON.
            rest.pop(by_name["prompt"])
            first, second = [], []
            for side, turns in ((first, first_turns), (second, second_turns)):
                for prompt, answer in zip_longest(prompts, turns[: len(prompts)]):
                    side.append({"role": "user", "content": prompt})
                    if answer is not None:
                        side.append({"role": "assistant", "content": answer})
        context, outputs = _split_pair(first, second, sides)
        systems = [suffix[1:] for suffix in suffixes]
        if names:
            systems = [as_name(name, rest.pop(name, None)) for name in names]
        choice = _parse_winner(rest, winners, suffixes, systems) if winners else None
        judge = by_name.get("judge")
        if judge and isinstance(rest.get(judge), str) and "rater" not in rest:
            rest["rater"] = rest.pop(judge)
        if rest.get("system") is not None:
            raise RowError("'system' in a row of two outputs: drop it with `fields={'system': ''}`")
        _convert_prompt(rest, context)
        return [_build_pair(row, rest, context, systems, outputs, choice)]

    return convert


def _messages_layout(row: dict[str, Any], column: str, layout: RowLayout) -> Convert | None:
    """A conversation: its last answer is the output, what comes before is the source."""
    messages = parse_messages(row[column]) or []
    if name_role(messages[-1]) != "Assistant":
        return None
    layout.notes.append(f"output = the last of {column}, source = {column} before it")

    def convert(row: dict[str, Any]) -> list[dict[str, Any]]:
        rest = dict(row)
        value = _take(rest, column)
        messages = parse_messages(value)
        if not messages or name_role(messages[-1]) != "Assistant":
            raise RowError(f"{column!r} must be a list of messages that ends with an answer, got {format_value(value)}")
        context = describe_context(messages[:-1])
        return [_rebuild(row, {**context, **rest, "output": messages[-1][1]})]

    return convert


def _convert_completions(row: dict[str, Any], column: str) -> list[dict[str, Any]]:
    """UltraFeedback: several models' answers to one instruction, each with ratings."""
    rest = dict(row)
    completions = rest.pop(column)
    if not isinstance(completions, list) or not completions:
        raise RowError(f"{column!r} must be a list of objects, got {format_value(completions)}")
    rest.pop("models", None)
    if "source" in rest:
        rest["dataset"] = rest.pop("source")  # the name of the data set, not a text
    rows = []
    for number, completion in enumerate(completions, 1):
        if not isinstance(completion, dict) or "response" not in completion:
            raise RowError(f"{column} {number} must be an object with 'response', got {format_value(completion)}")
        ratings = {}
        annotations = completion.get("annotations")
        for aspect, annotation in (annotations if isinstance(annotations, dict) else {}).items():
            value = annotation.get("Rating") if isinstance(annotation, dict) else None
            if is_number(value):
                ratings[aspect] = value
        if is_number(completion.get("overall_score")):
            ratings["overall"] = completion["overall_score"]
        rows.append(
            {
                **rest,
                "system": as_name(f"model of {column} {number}", completion.get("model") or str(number)),
                "output": as_text(f"response of {column} {number}", completion["response"]),
                **({"ratings": ratings} if ratings else {}),
            }
        )
    return rows


def _build_pair(
    row: dict[str, Any],
    rest: dict[str, Any],
    context: Mapping[str, str],
    systems: Sequence[str],
    outputs: Sequence[str],
    choice: int | None,
) -> dict[str, Any]:
    if choice is not None:
        if rest.get("ratings"):
            raise RowError("'ratings' in a row that names its winner: drop one of them with `fields={'COLUMN': ''}`")
        rest["ratings"] = {PREFERENCE: choice}
    return _rebuild(row, {**context, **rest, "systems": list(systems), "outputs": list(outputs)})


def _rebuild(row: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    return Cells(values) if type(row) is Cells else values


def _take(row: dict[str, Any], column: str) -> Any:
    value = row.pop(column, None)
    if value is None:
        raise RowError(f"no {format_value(column)}, which other rows have")
    return value


def _split_pair(first: Any, second: Any, names: tuple[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return what two texts, transcripts or conversations share, and what is left of each."""
    turns = [_parse_turns(first), _parse_turns(second)]
    if turns[0] is None or turns[1] is None or len(turns[0]) + len(turns[1]) == 2:
        texts = [
            turn[0][1] if turn and len(turn) == 1 else text for turn, text in zip(turns, (first, second), strict=True)
        ]
        return {}, [as_text(name, text) for name, text in zip(names, texts, strict=True)]
    shared = 0
    while shared < min(len(turns[0]), len(turns[1])) - 1 and turns[0][shared] == turns[1][shared]:
        shared += 1
    # The first turn of an answer goes without its role.
    answers = [
        "\n\n".join([turn[shared][1], *(f"{name_role(message)}: {message[1]}" for message in turn[shared + 1 :])])
        for turn in turns
        if turn
    ]
    return describe_context(turns[0][:shared]), answers


def _parse_turns(value: Any) -> list[Message] | None:
    """Return (role, text) of a conversation: a list of messages, or a transcript `\\n\\nHuman: …\\n\\nAssistant: …`."""
    if isinstance(value, str) and not value.lstrip().startswith("["):
        parts = _TURN.split(value)
        if parts[0].strip() or len(parts) < 4:
            return None
        return [(role, text.strip()) for role, text in zip(parts[1::2], parts[2::2], strict=True)]
    return parse_messages(value)


def _convert_prompt(rest: dict[str, Any], context: dict[str, str]) -> None:
    """Turn a prompt that is a list of messages into a text; a prompt says more than the turns that two texts share."""
    for name in ("prompt", "question", "instruction", "source"):
        column = next((column for column in rest if normalise_name(column) == name), None)
        if column is None or rest[column] is None:
            continue
        messages = parse_messages(rest[column])
        if messages:
            del rest[column]
            context |= describe_context(messages)
        elif name != "instruction":
            context.pop("source", None)
        return


def _parse_list(value: Any) -> list[str] | None:
    """Return a list of texts, also one that is written as JSON; None if the value is something else."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if isinstance(value, list) and all(isinstance(text, str | None) for text in value):
        return [text or "" for text in value]
    return None


def _find_winners(by_name: Mapping[str, str], suffixes: tuple[str, str]) -> tuple[str, ...]:
    """Return the column that names the winner, or three columns of which one is 1."""
    flags = [f"winner_model{suffix}" for suffix in suffixes]
    if all(name in by_name for name in flags):
        return tuple(by_name[name] for name in (*flags, "winner_tie") if name in by_name)
    named = [by_name[name] for name in _WINNERS if name in by_name]
    if len(named) > 1:
        raise RowError(
            f"several columns may name the winner: {', '.join(named)}; drop one with `fields={{'COLUMN': ''}}`"
        )
    return tuple(named)


def _parse_winner(
    row: dict[str, Any], columns: Sequence[str], suffixes: tuple[str, str], systems: Sequence[str]
) -> int | None:
    """Return 1 for the first, 2 for the second, 0 for a tie, None if nobody chose."""
    if len(columns) > 1:
        flags = [str(row.pop(column, None)).strip().lower() in ("1", "1.0", "true") for column in columns]
        if sum(flags) != 1:
            raise RowError(f"exactly one of {', '.join(columns)} must be 1, got {sum(flags)} of them")
        return (1, 2, 0)[flags.index(True)]
    value = row.pop(columns[0], None)
    if value is None or value == "":
        return None
    text = str(value).strip()
    for number, suffix in enumerate(suffixes):
        letter = suffix[1:]
        names = {letter, f"[[{letter}]]", *(f"{stem}{suffix}" for stem in (*_STEMS, *_NAME_STEMS)), f"{letter}.0"}
        if text.lower() in names or text == systems[number] or (number, text.lower()) in ((0, "first"), (1, "second")):
            return number + 1
    if text.lower() in _TIES:
        return 0
    named = f"{suffixes[0][1:]!r}, {suffixes[1][1:]!r}, 'tie' or the name of a system"
    raise RowError(f"{columns[0]!r} must be {named}, got {format_value(value)}")


# ---- Conversations: lists of messages, as APIs and data sets have them, read as texts


def parse_messages(value: Any) -> list[Message] | None:
    """Return (role, text) of a list of messages, also one that is written as text; None if it is none."""
    if isinstance(value, str):
        value = parse_literal(value) if value.lstrip().startswith("[{") else None
    if not isinstance(value, list) or not value:
        return None
    messages = []
    for message in value:
        if not isinstance(message, dict):
            return None
        role = message.get("role", message.get("from"))
        content: Any = message.get("content", message.get("value"))
        if isinstance(content, list):
            # Parts of a message: texts count, images do not.
            texts = [part.get("text") for part in content if isinstance(part, dict)]
            content = "\n".join(text for text in texts if isinstance(text, str))
        if not isinstance(role, str) or not isinstance(content, str):
            return None
        messages.append((role, content))
    return messages


def name_role(message: Message) -> str:
    return _ROLES.get(message[0].lower(), message[0].capitalize())


def describe_context(messages: Sequence[Message]) -> dict[str, str]:
    """Return the source, and as instruction a system prompt, of the messages before an answer."""
    context = {}
    if messages and messages[0][0].lower() == "system":
        context["instruction"] = messages[0][1]
        messages = messages[1:]
    if len(messages) == 1 and name_role(messages[0]) == "Human":
        context["source"] = messages[0][1]
    elif messages:
        context["source"] = "\n\n".join(f"{name_role(message)}: {message[1]}" for message in messages)
    return {name: text for name, text in context.items() if text}
