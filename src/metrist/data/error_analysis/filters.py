"""Filters of examples: small named steps, each of which counts what it removes and keeps samples of it.

They are those of the TIGERScore paper, 3.3, and a few that its code has: see `FILTERS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from metrist.data.error_analysis.examples import NOTHING, AnalysisExample
from metrist.metrics.errors.answers import MAX_PENALTY, MIN_PENALTY
from metrist.metrics.errors.aspect_tables import choose_table
from metrist.metrics.errors.span_alignment import UNNAMED
from metrist.metrics.errors.tigerscore import parse_tiger_answer
from metrist.ratings import Error

#: The largest penalty of a minor error (TIGERScore paper, 3.3).
MAX_MINOR_PENALTY = 2.5
#: The largest share of an error's words that may be in neither the output nor the source.
MAX_FOREIGN_WORDS = 0.5
#: Tokens of prompt and completion together, at about four bytes each; the checkpoints read 1,024.
MAX_TOKENS = 1024
TokenCounter = Callable[[AnalysisExample], int]
#: Removed examples that a report shows for each step.
SAMPLES = 5


@dataclass(slots=True)
class FilterStep:
    """What one step removed. A sample has the id or the record of what was removed, and the reason."""

    name: str
    description: str
    removed: int = 0
    samples: list[dict[str, Any]] = field(default_factory=list)

    def add(self, reason: str, **what: Any) -> None:
        """Count something that is removed."""
        self.removed += 1
        if len(self.samples) < SAMPLES:
            self.samples.append({**what, "reason": reason})


@dataclass(frozen=True, slots=True)
class Filter:
    """A step that looks at one example; `find_fault` gives the reason to remove it, or None."""

    name: str
    description: str
    find_fault: Callable[[AnalysisExample], str | None]


def apply_filters(
    examples: Iterable[AnalysisExample], filters: Sequence[Filter], steps: dict[str, FilterStep]
) -> Iterator[AnalysisExample]:
    """Yield the examples that pass all filters, and count the others under the first one that they do not pass."""
    for filter_ in filters:
        steps.setdefault(filter_.name, FilterStep(filter_.name, filter_.description))
    for example in examples:
        for filter_ in filters:
            if reason := filter_.find_fault(example):
                steps[filter_.name].add(reason, **describe(example))
                break
        else:
            yield example


def describe(example: AnalysisExample) -> dict[str, Any]:
    """An example in the list of what was removed."""
    return {
        "id": example.id,
        "task": example.task,
        "channel": example.channel,
        "item": example.item,
        "system": example.system,
        "output": example.output[:300],
        "completion": example.completion[:600],
    }


def _check_errors(find_fault: Callable[[Error, AnalysisExample], str | None], example: AnalysisExample) -> str | None:
    for number, error in enumerate(example.errors, 1):
        if reason := find_fault(error, example):
            return f"error {number} {reason}"
    return None


def _find_missing(error: Error, _: AnalysisExample) -> str | None:
    missing = [
        name for name, text in (("words", error.text), ("aspect", error.aspect), ("explanation", error.explanation))
        if not text.strip()
    ]  # fmt: skip
    if error.penalty is None:
        missing.append("penalty")
    return f"has no {', no '.join(missing)}" if missing else None


def _find_wrong_aspect(error: Error, example: AnalysisExample) -> str | None:
    if error.aspect == UNNAMED:
        return "has no aspect"
    names = choose_table(example.task).names
    if example.channel == "freeform" or error.aspect in names:
        return None
    return f"has the aspect {error.aspect[:60]!r}, expected one of {', '.join(names)}"


def _find_wrong_severity(error: Error, _: AnalysisExample) -> str | None:
    if error.severity in ("major", "minor"):
        return None
    return f"has the severity {str(error.severity)[:40]!r}, expected major or minor"


def _find_wrong_penalty(error: Error, _: AnalysisExample) -> str | None:
    penalty = error.penalty or 0.0
    if MIN_PENALTY <= penalty <= MAX_PENALTY:
        return None
    return f"has a penalty of {penalty:g}, expected {MIN_PENALTY:g} to {MAX_PENALTY:g}"


def _find_heavy_minor(error: Error, _: AnalysisExample) -> str | None:
    if error.severity != "minor" or (error.penalty or 0.0) <= MAX_MINOR_PENALTY:
        return None
    return f"is minor and has a penalty of {error.penalty:g}, expected at most {MAX_MINOR_PENALTY:g}"


#: An analyst does not see references: it would learn to make them up. A link or list of references is no such mention.
_MENTION = re.compile(
    r"\b(?:gold|golden|ground[- ]truth|target)[- ](?:standard|truth|answer|output|text|summary|translation|solution)\b"
    r"|\bground[- ]truth\b|\breference[- ](?:output|answer|text|summary|translation|solution|sentence|version|response)"
    r"|\b(?:the|this|provided|given|correct|human|expected)\s+references?\b(?!\s+(?:to|link|number|list|book|work|point))",
    re.IGNORECASE,
)


#: What the judged texts say does not count: they may be about gold standards.
_QUOTATION = re.compile(r"“[^”]*”")


def _find_mention(error: Error, _: AnalysisExample) -> str | None:
    match = _MENTION.search(_QUOTATION.sub("“”", error.explanation))
    return f"refers to something that an analyst is not shown: {match[0]!r}" if match else None


def _find_foreign_words(error: Error, example: AnalysisExample) -> str | None:
    words = error.text
    if words in example.output or (error.side == "source" and words in example.source):
        return None
    if words == NOTHING and not example.output.strip():
        return None
    known = set(example.output.lower().split()) | set(example.source.lower().split())
    parts = words.lower().split()
    foreign = sum(part not in known for part in parts)
    if foreign <= MAX_FOREIGN_WORDS * len(parts):
        return None
    return f"marks words that are mostly in neither the output nor the source: {words[:80]!r}"


def _find_no_change(error: Error, _: AnalysisExample) -> str | None:
    same = bool(error.revision.strip()) and error.revision.split() == error.text.split()
    return f"asks for what is there already: {error.revision[:80]!r}" if same else None


#: A text that imitates an answer has one of these words.
_ANSWER_WORDS = ("error", "explanation", "severity", "reduction")


def _find_unreadable(example: AnalysisExample) -> str | None:
    """Whether the parser of the checkpoints' answers gets other errors out of the completion. It does where the judged
    texts imitate an answer; without the words of one, parsing, which is slow, is not tried."""
    texts = (example.output, example.source, example.instruction)
    if not any(word in text.lower() for text in texts for word in _ANSWER_WORDS):
        return None
    answer = parse_tiger_answer(example.completion, example.prompt)
    if answer.failure is not None:
        return str(answer.failure)
    if len(answer.errors) != len(example.errors) or abs(answer.penalty + example.score) > 1e-6:
        return f"the completion is read as {len(answer.errors)} errors with {answer.penalty:g} in all"
    return None


def limit_length(max_tokens: int = MAX_TOKENS, count: TokenCounter | None = None) -> Filter:
    """The filter of examples that are too long for the model that learns from them."""
    about = "" if count else "about "

    def find(example: AnalysisExample) -> str | None:
        tokens = (count or count_tokens)(example)
        return f"has {about}{tokens:,} tokens, expected at most {max_tokens:,}" if tokens > max_tokens else None

    return Filter("length", f"prompt and completion have more than {about}{max_tokens:,} tokens", find)


def read_counter(model: str) -> TokenCounter:
    """A function that counts the tokens of prompt and completion as a model's tokenizer makes them."""
    from metrist.models.devices import Options
    from metrist.models.pretrained import read_tokenizer
    from metrist.models.weights import find_weights

    options = Options(model=model)
    tokenizer = read_tokenizer(find_weights(options), options)

    def count(example: AnalysisExample) -> int:
        return len(tokenizer(f"{example.prompt}\n{example.completion}", verbose=False)["input_ids"])

    return count


def count_tokens(example: AnalysisExample) -> int:
    """About how many tokens prompt and completion have: four bytes are one, as in cost estimates."""
    return (len(example.prompt.encode()) + len(example.completion.encode())) // 4


def drop_duplicates() -> Filter:
    """The filter of examples whose prompt an earlier one has."""
    seen: set[tuple[str, str, str]] = set()

    def find(example: AnalysisExample) -> str | None:
        key = example.instruction, example.source, example.output
        if key in seen:
            return "an earlier example has the same prompt"
        seen.add(key)
        return None

    return Filter("duplicate", "an earlier example has the same prompt", find)


#: The filters that need no settings, in order.
FILTERS = (
    Filter(
        "incomplete", "an error lacks its words, aspect, explanation or penalty", partial(_check_errors, _find_missing)
    ),
    Filter("severity", "a severity is neither major nor minor", partial(_check_errors, _find_wrong_severity)),
    Filter(
        "penalty", f"a penalty is not {MIN_PENALTY:g} to {MAX_PENALTY:g}", partial(_check_errors, _find_wrong_penalty)
    ),
    Filter(
        "minor penalty",
        f"a minor error has a penalty above {MAX_MINOR_PENALTY:g}",
        partial(_check_errors, _find_heavy_minor),
    ),
    Filter("aspect", "an aspect is not in the table of the task", partial(_check_errors, _find_wrong_aspect)),
    Filter("reference", "an explanation mentions the reference", partial(_check_errors, _find_mention)),
    Filter(
        "location",
        "the words of an error are mostly in neither the output nor the source",
        partial(_check_errors, _find_foreign_words),
    ),
    Filter("no change", "a revision is what the output says", partial(_check_errors, _find_no_change)),
    Filter("format", "the parser does not get the errors back", _find_unreadable),
)
