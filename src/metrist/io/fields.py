"""Names of the fields that metrist reads, common aliases of them, and checks of their values."""

from __future__ import annotations

import ast
import io
import json
import math
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from metrist.errors import InputError, did_you_mean
from metrist.io.row_model import RowError, format_value
from metrist.records import TAG_FIELDS, TEXT_FIELDS

#: How many outputs or pairs a sampled row stands for.
SAMPLING_WEIGHT = "sampling_weight"
JUDGMENTS = ("ratings", "raters", "rater", "errors", "scores", SAMPLING_WEIGHT, "rater_notes")
FIELDS = (*TEXT_FIELDS, "references", "reference", "systems", "outputs", *JUDGMENTS)
#: The better and the worse of two outputs.
CHOSEN, REJECTED = "chosen", "rejected"
FAMILIES = ("rating:", "score:", "reference_")
_LONGEST_NAME = 200
_SHOWN_COLUMNS = 20

#: Fields that may have another name in a file; judgments are never guessed.
_RECOGNISED = frozenset({*TEXT_FIELDS, "references"})


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ITEM = _names(
    "id item_id example_id sample_id instance_id segment_id seg_id segid sent_id sentence_id doc_id docid document_id "
    "question_id qid query_id prompt_id conversation_id case_id test_id uid uuid guid"
)
#: Row counters: they name the item only where nothing else does.
_COUNTERS = _names("index idx row row_id row_number number line line_number")
_SYSTEM = _names(
    "model model_name model_id system_name system_id sys sys_name sysname engine method generator mt_system llm "
    "llm_name"
)
_OUTPUT = _names(
    "prediction predictions predicted predicted_text pred preds hypothesis hypotheses hypo hyp candidate cand "
    "response completion generation generated generated_text generated_output generated_summary generated_answer "
    "model_output model_response model_answer model_summary system_output system_summary llm_output llm_response "
    "output_text actual_output decoded sys_out mt mt_output translation candidate_summary candidate_translation "
    "predicted_answer predicted_summary reply summary answer"
)
_REFERENCES = _names(
    "reference ref refs ref_text reference_text reference_texts reference_summary reference_summaries "
    "reference_translation reference_answer reference_answers reference_output human_reference gold golds gold_text "
    "gold_answer gold_answers gold_summary gold_reference golden golden_answer ground_truth ground_truths groundtruth "
    "gt target targets target_text tgt expected expected_output expected_answer correct_answer correct_answers ideal "
    "ideal_answer highlights answers"
)
#: What an output was made from, and what was asked about it. A question is the source where there is nothing else.
_MATERIAL = _names(
    "src src_text source_text source_sentence source_document input input_text article document passage original "
    "original_text"
)
_QUESTION = _names("prompt question query user_prompt user_input")
_CONTEXT = _names("context dialogue dialog transcript history conversation_history")
#: Texts that were retrieved for a question, mostly as a list.
_PASSAGES = _names(
    "contexts retrieved_contexts retrieved_context passages retrieved_passages documents retrieved_documents docs "
    "retrieved_docs chunks retrieved_chunks"
)
_INSTRUCTION = _names("instructions inst task_instruction")
#: Names that may be those of items: `Ticket ID`, but not of what made or judged an output.
_OTHER_ITEM = re.compile(r"(?!(rater|annotator|worker|user|judge|coder|run|batch|session|author)_).*_(id|uid|uuid|key)")
_NUMBERED_ALIAS = re.compile(r"(reference|ref|gold|target|tgt)_?(\d{1,9}|[a-h])")
_OWN_NUMBERED = re.compile(r"reference_\d{1,9}")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATORS = re.compile(r"[\s\-./]+")
_ANY_NAME = frozenset({*FIELDS, "text"}).union(
    _ITEM, _COUNTERS, _SYSTEM, _OUTPUT, _REFERENCES, _MATERIAL, _QUESTION, _CONTEXT, _PASSAGES, _INSTRUCTION
)
#: Columns whose values may be lists of texts, or of objects with a text under one of these names.
_PASSAGE_COLUMNS = _PASSAGES | {"context", "passage", "document"}
_PASSAGE_TEXTS = ("text", "content", "page_content")
#: What `guess_column` suggests beyond the recognised names: too ambiguous to be taken without asking.
_SUGGESTED = {
    "output": (*sorted(_OUTPUT), "text", "result", "target", "content"),
    "source": (*sorted(_MATERIAL | _QUESTION | _CONTEXT | _PASSAGES), "text", "content"),
    "references": (*sorted(_REFERENCES), "label", "labels", "answer", "summary"),
    "instruction": (*sorted(_INSTRUCTION), "prompt", "question", "query"),
    "system": tuple(sorted(_SYSTEM)),
    "item": (*sorted(_ITEM), *sorted(_COUNTERS)),
}


def guess_column(field: str, columns: Iterable[str]) -> str | None:
    """Return the column that most likely holds `field`, or None."""
    by_name = {normalise_name(column): column for column in columns if isinstance(column, str)}
    for alias in _SUGGESTED.get(field, ()):
        if alias in by_name:
            return by_name[alias]
    near = get_close_matches(field, by_name, n=1, cutoff=0.75)
    return by_name[near[0]] if near else None


def list_wide_patterns(columns: Iterable[str]) -> list[str]:
    """Return patterns of outputs that match at least two columns: `*_output`, `summary_*`, `Answer *`."""
    found: Counter[str] = Counter()
    for column in columns:
        parts = re.split(r"([ _-])", column.strip())
        if len(parts) > 1 and normalise_name(parts[-1]) in (_OUTPUT | {"output"}):
            found[f"*{parts[-2]}{parts[-1]}"] += 1
        elif len(parts) > 1 and normalise_name(parts[0]) in (_OUTPUT | {"output"}):
            found[f"{parts[0]}{parts[1]}*"] += 1
    return [pattern for pattern, count in found.items() if count > 1]


def normalise_name(column: str) -> str:
    """Return a column's name in the form of the tables above: `model_output` for `Model Output` and `modelOutput`."""
    return _SEPARATORS.sub("_", _CAMEL.sub("_", column.strip())).lower()


def check_fields(fields: Mapping[str, str]) -> None:
    """Check that each entry maps a field of metrist to a column, or drops a column."""
    for field, column in fields.items():
        known = (*FIELDS, CHOSEN, REJECTED)
        if column and field not in known and not field.startswith(FAMILIES):
            raise InputError(
                f"metrist has no field named {format_value(field)}{did_you_mean(field, known)}", code="unknown_name"
            )


class ColumnCheck:
    """Looks for the columns that the user mapped to fields in the rows of one file, as they are in the file.

    `missing` maps fields to columns that no row so far has; `columns` are those that were seen, in their order.
    """

    def __init__(self, fields: Mapping[str, str]) -> None:
        self.missing: dict[str, str] = {field: column for field, column in fields.items() if column}
        self.columns: dict[str, None] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        if row.keys() <= self.columns.keys() and not any("." in column for column in self.missing.values()):
            return
        self.columns.update(dict.fromkeys(row))
        for field, column in list(self.missing.items()):
            # --field references=ref1,ref2
            parts = column.split(",") if field == "references" and column not in row else [column]
            left = [part for part in map(str.strip, parts) if part and not _has_column(row, part)]
            if left:
                self.missing[field] = ",".join(left)
            else:
                del self.missing[field]

    def describe(self, field: str) -> str:
        column = self.missing[field].split(",")[0] if field == "references" else self.missing[field]
        near = did_you_mean(column, self.columns)
        guess = guess_column(field, self.columns)
        if not near and guess:
            near = f"; did you mean {guess!r}?"
        shown = ", ".join(map(format_value, list(self.columns)[:_SHOWN_COLUMNS]))
        listed = f"columns are {shown}{', …' if len(self.columns) > _SHOWN_COLUMNS else ''}"
        return (
            f"no column {format_value(column)}, which `fields` maps to {field!r}"
            f"{near + ' The ' if near else '; the '}{listed}"
        )


class ColumnMap:
    """Which columns of one file hold which fields: those that the user named, and those that have a common name.

    `known` are the columns that were looked at; a row with others must be passed to `learn` before it is parsed.
    `samples` has the first value of each column. `fields` maps fields to columns for `rename`; `recognised` has those
    mappings that nobody asked for. `unread` is a column of systems that `system` overrules.
    """

    def __init__(self, fields: Mapping[str, str], item_key: Iterable[str] = (), has_system: bool = False) -> None:
        self.known: set[str] = set() if fields else set(FIELDS)
        self.samples: dict[str, Any] = {}
        self.fields: dict[str, str] = dict(fields)
        self.recognised: dict[str, str] = {}
        self._explicit = dict(fields)
        self._item_key = frozenset(item_key)
        self._settled = set(fields), bool(self._item_key)
        self._used = {column for column in fields.values() if column} | self._item_key
        self._used |= {field for field, column in fields.items() if not column}
        self._has_system = has_system
        self.unread = ""
        #: Columns of the first row that hold no field.
        self.unused: tuple[str, ...] = ()
        self._paths: dict[str, tuple[str, ...]] = {}

    def learn(self, row: Mapping[str, Any]) -> None:
        """Look at the columns of a row that has new ones; raise RowError where two compete for a field."""
        is_first = not self.samples
        new = [column for column in row if column not in self.known]
        for column, value in row.items():
            if self.samples.get(column) is None:
                self.samples[column] = value
        names = map(normalise_name, new)
        if not is_first and not any(name in _ANY_NAME or _NUMBERED_ALIAS.fullmatch(name) for name in names):
            self.known.update(new)
            return
        found = self._recognise(is_table=type(row) is not dict)
        mixed = {field: column for field, column in self.recognised.items() if found.get(field) != column}
        if not mixed:
            # A row that has only the common name where earlier rows have ours.
            alone = _match_fields({column: row[column] for column in row if column not in self._used}, *self._settled)
            mixed = {field: field for field in alone if field not in found and field in self.samples}
            found_here = alone
        else:
            found_here = found
        for field, column in mixed.items():
            other = found_here.get(field) or field
            raise RowError(
                f"{format_value(other)} where earlier rows have {format_value(column)}: both may be the {field}; give "
                f"them one name, or name one: {name_field(field, column)} or {name_field(field, other)}"
            )
        self.recognised = found
        self.known.update(row)
        if is_first:
            used = {*self._used, *FIELDS, self.unread}
            for column in self.fields.values():
                used.update((column, *column.split(","), column.split(".")[0]))
            free = [column for column in self.samples if column not in used and not column.startswith(FAMILIES)]
            self.unused = tuple(column for column in free if not _OWN_NUMBERED.fullmatch(column))

    def release(self, field: str) -> None:
        """Drop the user's mapping of a field that the rows get from another column."""
        del self.fields[field], self._explicit[field]
        self._used.discard(field)
        self._settled[0].discard(field)

    def describe(self) -> list[str]:
        """Return `item = id` and so on for everything that was recognised."""
        mapped = [f"{field} = {column}" for field, column in self.recognised.items()]
        own = [column for column in self.samples if column == "reference" or _OWN_NUMBERED.fullmatch(column)]
        own = [column for column in own if column not in self._used and column not in self.fields]
        if mapped and own:
            mapped.append(f"references = {', '.join(own)}")
        unread = [f"{self.unread} is not read (`system`)"] if self.unread else []
        if self.numbers_items:
            ids = [
                c for c in self.unused if _OTHER_ITEM.fullmatch(normalise_name(c)) and _fits("item", self.samples[c])
            ]
            unread += [
                f"rows are numbered ({name_field('item', column)} if {column} names the item)" for column in ids[:1]
            ]
        return [*mapped, *unread]

    @property
    def numbers_items(self) -> bool:
        """Whether no column names the items, as far as the first row shows."""
        return not (self._item_key or "item" in self.fields or "item" in self.samples)

    def rename(self, row: dict[str, Any]) -> None:
        """Rename columns to the fields they hold, in place; drop columns that are mapped to \"\"."""
        values = {field: row[column] for field, column in self.fields.items() if column in row}
        source = values.get("source")
        if isinstance(source, str) and source.lstrip().startswith("["):
            # A list of passages in a cell: in JSON, or as Python or numpy print it.
            is_list = normalise_name(self.fields["source"]) in _PASSAGE_COLUMNS
            passages = parse_literal(source) if is_list else None
            if isinstance(passages, list) and all(find_text(part) is not None for part in passages):
                values["source"] = passages
        for field, column in self.fields.items():
            if field not in self._paths:
                row.pop(column or field, None)
        for field, path in self._paths.items():
            value = _follow(row, path)
            if value is not None:
                values[field] = value
        row.update(values)

    def _recognise(self, *, is_table: bool) -> dict[str, str]:
        """Return field → column (or columns, separated by commas) for the columns seen so far, and set `fields`."""
        fields = dict(self._explicit)
        references = self._explicit.get("references", "")
        if references and references not in self.samples and "," in references:
            # --field references=ref1,ref2
            del fields["references"]
            parts = [part.strip() for part in references.split(",") if part.strip()]
            fields |= {f"reference_{number}": part for number, part in enumerate(parts, 1)}
            self._used |= set(parts)
        elif references not in ("", "references") and not is_table:
            # In JSON, a column of another name may hold a list or a single text; so may `reference`.
            fields["reference"] = fields.pop("references")
        found = _match_fields(
            {column: value for column, value in self.samples.items() if column not in self._used}, *self._settled
        )
        self.unread = found.pop("system", "") if self._has_system else ""
        for field, column in found.items():
            if field != "references":
                fields[field] = column
            elif "," in column:
                fields |= {f"reference_{number}": part for number, part in enumerate(column.split(","), 1)}
            else:
                fields["references" if is_table else "reference"] = column
        self.fields = fields
        self._paths = {
            field: tuple(column.split("."))
            for field, column in fields.items()
            if "." in column and column not in self.samples and column.split(".")[0] in self.samples
        }
        return found


def rename_rows(rows: Iterable[tuple[int, Any]], fields: Mapping[str, str], name: object) -> Iterator[tuple[int, Any]]:
    """Rename columns in rows that are no records, such as pairs of texts to learn from: to any field, and only those
    that the user named. Raise InputError at the end for a column that no row has."""
    columns, check = ColumnMap(fields), ColumnCheck(fields)
    for line, row in rows:
        if isinstance(row, dict) and fields:
            check.add(row)
            columns.rename(row)
        yield line, row
    for field in check.missing:
        raise InputError(f"{name}: {check.describe(field)}", code="unknown_name")


def name_field(field: str, column: str) -> str:
    """Return the argument that reads a field from a column, or drops a column, for a message."""
    return f"`fields={ {field: column}!r}`"


def _has_column(row: Mapping[str, Any], column: str) -> bool:
    """Whether a row has the column, or the place inside nested objects and lists, even if it is null there."""
    if column in row or "." not in column:
        return column in row
    *path, last = column.split(".")
    parent = _follow(dict(row), path)
    if isinstance(parent, list):
        return last.isdecimal() and int(last) < len(parent)
    return isinstance(parent, dict) and last in parent


def _follow(value: Any, path: Iterable[str]) -> Any:
    """Return the value inside nested objects and lists: `answers.text`, `messages.0.content`."""
    for key in path:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


def _match_fields(samples: Mapping[str, Any], explicit: set[str], has_item: bool) -> dict[str, str]:
    """Return which columns hold which fields, for fields that neither the file nor the user names."""
    by_name: dict[str, str] = {}
    for column in samples:
        by_name.setdefault(normalise_name(column), column)
    own = {field for field in _RECOGNISED if field in samples} | (explicit & _RECOGNISED)
    own |= {"item"} if has_item else set()
    if "outputs" in samples or "systems" in samples or "outputs" in explicit or "systems" in explicit:
        own |= {"output", "system"}
    if "reference" in samples or any(map(_OWN_NUMBERED.fullmatch, [*samples, *explicit])) or "reference" in explicit:
        own.add("references")
    # A file with all three keys in our names was made for metrist: a column `context` in it is only that.
    is_ours = {"item", "system", "output"} <= own
    found: dict[str, str] = {}

    def candidates(field: str, names: frozenset[str]) -> list[str]:
        return [
            column
            for name, column in by_name.items()
            if (name in names or name == field)
            and column not in found.values()
            and _fits("passages" if name in _PASSAGE_COLUMNS else field, samples[column])
        ]

    def take(field: str, columns: list[str]) -> None:
        if len(columns) > 1:
            raise RowError(_describe_competition(field, columns))
        if columns:
            found[field] = columns[0]

    if "item" not in own:
        take("item", candidates("item", _ITEM) or candidates("item", _COUNTERS)[:1])
    if "system" not in own:
        take("system", candidates("system", _SYSTEM))
    if "output" not in own:
        take("output", candidates("output", _OUTPUT) or candidates("output", _names("text")))
    if "references" not in own:
        take("references", _reference_candidates(candidates("references", _REFERENCES), by_name, samples))
    for field in TAG_FIELDS:
        if field not in own:
            take(field, candidates(field, frozenset())[:1])
    if "instruction" not in own:
        take("instruction", candidates("instruction", _INSTRUCTION))
    if "source" in own:
        return found
    passages = candidates("source", _PASSAGES)
    material = candidates("source", _MATERIAL) or passages
    questions = candidates("source", _QUESTION)
    if is_ours and not passages:
        take("source", material or questions)
        return found
    contexts = candidates("source", _CONTEXT)
    if not material and questions and len(contexts) == 1:
        material = contexts
    if material and questions and "instruction" not in own and "instruction" not in found:
        take("source", material)
        take("instruction", questions)
        return found
    take("source", material or questions or contexts or candidates("source", _names("text")))
    return found


def _reference_candidates(single: list[str], by_name: Mapping[str, str], samples: Mapping[str, Any]) -> list[str]:
    """Return the columns that may hold references; numbered ones (`ref1`, `ref2`) are one candidate."""
    numbered: dict[str, list[tuple[int, str, str]]] = {}
    for name, column in by_name.items():
        match = _NUMBERED_ALIAS.fullmatch(name)
        if match and _fits("references", samples[column]) and "," not in column:
            numbered.setdefault(match[1], []).append((len(match[2]), match[2], column))
    paths = [f"{column}.text" if isinstance(samples[column], dict) else column for column in single]
    return [*paths, *(",".join(column for *_, column in sorted(group)) for group in numbered.values())]


def _fits(field: str, value: Any) -> bool:
    """Whether a column with this value may hold the field. A column of numbers is no text to judge, and an object no
    name."""
    if value is None:
        return True
    if field == "passages":
        return isinstance(value, str) or (
            isinstance(value, list) and all(find_text(part) is not None for part in value)
        )
    if field == "references":
        if isinstance(value, dict):
            value = value.get("text")
        return isinstance(value, str) or (isinstance(value, list) and all(isinstance(text, str) for text in value))
    if field in ("item", "system"):
        if isinstance(value, str):
            return len(value) <= _LONGEST_NAME and "\n" not in value
        return not isinstance(value, bool) and (isinstance(value, int) or (type(value) is float and value.is_integer()))
    return isinstance(value, str) or (field == "output" and isinstance(value, int))


def _describe_competition(field: str, columns: list[str]) -> str:
    listed = (" and " if len(columns) == 2 else ", ").join(map(format_value, columns))
    flags = " or ".join(name_field(field, column) for column in columns)
    more = ""
    if field == "item":
        more = f", or `item_key='{'+'.join(columns)}'` if only together they name an item"
    elif field == "output":
        more = "; if one of them is the reference, add `fields={'references': 'COLUMN'}`"
    elif field == "references":
        more = f", or {name_field(field, ','.join(columns))} for all of them"
    return f"{listed} may {'both' if len(columns) == 2 else 'all'} be the {field}: use {flags}{more}"


_YES_NO = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}


def as_text(field: str, value: Any) -> str:
    """Return a text. Integers and booleans are accepted as short answers; floats are not, since their spelling is
    ambiguous."""
    if type(value) is str:
        return value
    if isinstance(value, (str, int)):
        return str(value)
    inner = (
        next((key for key, text in value.items() if isinstance(text, str)), None) if isinstance(value, dict) else None
    )
    hint = f"; use {name_field(field, f'{field}.{inner}')} for a text inside it" if inner else ""
    raise RowError(f"{field!r} must be a text, got {format_value(value)}{hint}")


def find_text(passage: Any) -> str | None:
    """The text of a passage, which may be an object with more; None if it has none. A message has an author, too."""
    if isinstance(passage, dict) and "role" not in passage:
        passage = next((passage[name] for name in _PASSAGE_TEXTS if name in passage), None)
    return passage if isinstance(passage, str) else None


def as_source(value: Any) -> str | None:
    """Return a text, or one of passages with blank lines between them; None for no passages."""
    if not isinstance(value, (list, tuple)):
        return as_optional_text("source", value)
    texts = [find_text(passage) for passage in value]
    wrong = next((passage for passage, text in zip(value, texts, strict=True) if text is None), None)
    if None in texts:
        raise RowError(
            f"'source' must be a text or a list of texts, or of objects with {', '.join(_PASSAGE_TEXTS)}, got "
            f"{format_value(wrong)} in the list; {name_field('source', '')} drops it"
        )
    return "\n\n".join(filter(None, texts)) or None


def parse_literal(text: str) -> Any:
    """The value of a text in JSON, or as Python, pandas or numpy print it; None for another text."""
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError):
        value = ast.literal_eval(text.strip())
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            # numpy writes no commas, and Python would join the texts.
            tokens = tokenize.generate_tokens(io.StringIO(text.strip()).readline)
            value = [ast.literal_eval(token.string) for token in tokens if token.type == tokenize.STRING]
        return value
    return None


def as_optional_text(field: str, value: Any) -> str | None:
    return None if value is None else as_text(field, value)


def as_name(field: str, value: Any) -> str:
    """Return a name from a non-empty text or a number; 7, 7.0 and "7" give the same name."""
    if isinstance(value, str) and value:
        return str(value)
    if type(value) is int:
        return str(value)
    if type(value) is float and math.isfinite(value):
        return str(int(value)) if value.is_integer() else repr(value)
    raise RowError(f"{field!r} must be a non-empty text or a number, got {format_value(value)}")


def as_number(field: str, value: Any) -> float:
    """Return a finite number; accepts text, as tables have it, and yes/true (1) and no/false (0)."""
    try:
        if isinstance(value, (int, float)):
            number = float(value)
        elif isinstance(value, str) and "_" not in value:
            number = _YES_NO.get(value.strip().lower(), math.nan)
            number = float(value) if math.isnan(number) else number
        else:
            raise ValueError
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise RowError(f"{field} must be a finite number, got {format_value(value)}")
    return number


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, or a text that is one."""
    try:
        return not isinstance(value, bool) and abs(float(value)) < float("inf")
    except (TypeError, ValueError, OverflowError):
        return False


def as_texts(field: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        hint = "; use 'reference' for a single one" if field == "references" and isinstance(value, str) else ""
        raise RowError(f"{field!r} must be a list of strings, got {format_value(value)}{hint}")
    position = next((position for position, text in enumerate(value, 1) if type(text) is not str), None)
    if position is None:
        return tuple(value)
    try:
        return tuple(as_text(field, text) for text in value)
    except RowError:
        wrong = format_value(value[position - 1])
        raise RowError(f"{field!r} must be a list of strings, got {wrong} at position {position}") from None


def as_mapping(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RowError(f"{field!r} must be an object, got {format_value(value)}")
    wrong = next((name for name in value if not isinstance(name, str)), None)
    if wrong is not None:
        raise RowError(f"{field!r} must have text keys, got {format_value(wrong)}")
    return value
