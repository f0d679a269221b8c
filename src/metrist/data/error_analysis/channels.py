"""The channels that need no LLM: errors that people marked, faults put into good texts, and references."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from statistics import fmean

from metrist.data.error_analysis.examples import AnalysisExample, Channel, make_example
from metrist.data.faults import KINDS, Concern, Edit, EditableText, quote
from metrist.data.perturbations import can_perturb, choose_aspect, choose_donor, find_aspect, list_kinds, perturb
from metrist.data.settings import Good
from metrist.errors import SpecError, check_known
from metrist.io.reader import Reader
from metrist.metrics.errors.aspect_tables import choose_table
from metrist.metrics.errors.span_alignment import UNNAMED, find_matches
from metrist.metrics.prompt_layout import list_tasks, resolve_task
from metrist.ratings import Error
from metrist.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedOutput:
    """An output with what its files say about it: the errors that people marked, the people who looked for errors, mean
    ratings, and stored scores of other metrics."""

    record: Record
    errors: tuple[Error, ...] = ()
    raters: tuple[str, ...] = ()
    ratings: Mapping[str, float] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)


def read_outputs(reader: Reader, *, task: str | None = None, instruction: str | None = None) -> list[JudgedOutput]:
    """All outputs of the files. `task` and `instruction` take the place of those of the records. Of the raters of an
    output, those have looked for errors who marked any in its file; others may have given ratings only."""
    if task is not None and resolve_task(task) is None:
        check_known("task", task, list_tasks())
    records: dict[tuple[str, str], Record] = {}
    errors: dict[tuple[str, str], list[Error]] = {}
    raters: dict[tuple[str, str], list[tuple[int, str]]] = {}
    markers: set[tuple[int, str | None]] = set()
    ratings: dict[tuple[str, str], dict[str, list[float]]] = {}
    scores: dict[tuple[str, str], dict[str, float]] = {}
    for entry in reader.entries():
        for record in entry.new:
            changed = replace(record, task=task or record.task, instruction=instruction or record.instruction)
            records[record.item, record.system] = changed
        for stored in entry.errors:
            errors.setdefault((stored.item, stored.system), []).append(stored.error)
            markers.add((reader.source_number, stored.error.rater))
        for key in entry.keys:
            raters.setdefault(key, []).extend((reader.source_number, rater) for rater in entry.raters)
        for rating in entry.ratings:
            ratings.setdefault((rating.item, rating.system), {}).setdefault(rating.aspect, []).append(rating.value)
        for score in entry.scores:
            scores.setdefault((score.item, score.system), {})[score.metric] = score.value
    return [
        JudgedOutput(
            record=record,
            errors=tuple(errors.get(key, ())),
            raters=tuple(dict.fromkeys(rater for file, rater in raters.get(key, ()) if (file, rater) in markers)),
            ratings={aspect: fmean(values) for aspect, values in ratings.get(key, {}).items()},
            scores=scores.get(key, {}),
        )
        for key, record in records.items()
    ]


# ---- Errors that people marked


@dataclass(frozen=True, slots=True, kw_only=True)
class _Category:
    names: tuple[str, ...]
    concern: Concern
    explanation: str
    severity: str
    penalty: float


@cache
def _categories() -> tuple[_Category, ...]:
    text = (resources.files("metrist.data.error_analysis") / "categories.toml").read_text(encoding="utf-8")
    return tuple(_Category(**{**row, "names": tuple(row["names"])}) for row in tomllib.loads(text)["category"])


@cache
def _find_category(name: str) -> _Category | None:
    plain = _plain(name)
    return next((category for category in _categories() if any(part in plain for part in category.names)), None)


def _plain(name: str) -> str:
    return " ".join(name.lower().replace("_", " ").replace("-", " ").split())


#: Penalties of severities that people gave, as MQM weighs them. A neutral mark is no error.
_PENALTIES: Mapping[str, float] = {"minor": 1.0, "major": 5.0, "critical": 5.0}
_NO_ERROR = ("neutral", "no error", "no-error")
#: Categories that say nothing.
_NO_CATEGORY = ("", "other", "other/", "default", "none", "misc", "miscellaneous")


def use_human_errors(
    outputs: Iterable[JudgedOutput],
    *,
    aspects: Mapping[str, str] | None = None,
    clean: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Iterator[AnalysisExample]:
    """Examples from errors that people marked; of several people, one is chosen for each output.

    `aspects` gives categories of the data their aspect, such as `{"unspecified": "Accuracy"}`. An output without errors
    is an example if a named rater looked for errors in it, or if one of its ratings is at least the value that `clean`
    names for it. Categories that have no aspect in the table of the task make an example of free-form aspects.
    """
    chosen = {_plain(name): aspect for name, aspect in (aspects or {}).items()}
    for output in outputs:
        raters = list(output.raters) or sorted({error.rater for error in output.errors if error.rater is not None})
        errors: Sequence[Error] = output.errors
        if raters:
            rng = random.Random(f"{seed}\0{output.record.item}\0{output.record.system}")
            rater = rng.choice(raters)
            errors = [error for error in errors if error.rater in (rater, None)]
        elif not errors and not any(
            output.ratings.get(aspect, float("-inf")) >= value for aspect, value in (clean or {}).items()
        ):
            continue
        counted = [error for error in errors if (error.severity or "").lower() not in _NO_ERROR]
        described = [_describe(error, output.record, chosen) for error in counted]
        known = choose_table(output.record.task).names
        freeform = any(error.aspect not in (*known, UNNAMED) for error in described)
        yield make_example(output.record, described, "freeform" if freeform else "human")


def _describe(error: Error, record: Record, aspects: Mapping[str, str]) -> Error:
    """A person's error with aspect, severity, penalty, place and a reason."""
    plain = _plain(error.aspect)
    category = _find_category(error.aspect)
    aspect = aspects.get(plain)
    if aspect is None and error.aspect in choose_table(record.task).names:
        aspect = error.aspect
    if aspect is None and category is not None:
        aspect = find_aspect(category.concern, record.task)
    severity = (error.severity or "").lower()
    major = severity in ("major", "critical") or (not severity and (category is None or category.severity == "major"))
    penalty = error.penalty
    if penalty is None and severity:
        penalty = _PENALTIES.get(severity, 1.0)
        if severity == "minor" and category is not None:
            penalty = min(penalty, category.penalty)
    if penalty is None:
        penalty = category.penalty if category else 3.0
    placed = _place(error, record)
    return replace(
        placed,
        aspect=aspect or (UNNAMED if plain in _NO_CATEGORY else error.aspect),
        severity="major" if major else "minor",
        penalty=penalty,
        explanation=error.explanation.strip() or _explain(placed, record, category),
        rater=None,
    )


def _place(error: Error, record: Record) -> Error:
    """The error with its words and its place, as far as they can be found. White space around them is no part of it."""
    text = record.output if error.side == "output" else record.source or ""
    if error.start is not None and error.end is not None:
        words = text[error.start : error.end]
        start = error.start + len(words) - len(words.lstrip())
        return replace(error, text=words.strip(), start=start, end=start + len(words.strip()))
    matches = [match for match in find_matches(error.text, text) if match.how != "fuzzy"] if error.text else []
    if not matches:
        return error
    return replace(error, text=text[matches[0].start : matches[0].end], start=matches[0].start, end=matches[0].end)


_ABOUT_SOURCE: tuple[Concern, ...] = ("facts", "content", "terminology")


def _explain(error: Error, record: Record, category: _Category | None) -> str:
    """What is wrong, with the passage of the source that an error about it is about: the one with the same words, or in
    a translation the one at the same place."""
    words = quote(error.text) if error.text else "this place"
    explanation = (category.explanation if category else "{words} is wrong.").format(words=words)
    about_source = category is None or category.concern in _ABOUT_SOURCE
    if not about_source or not record.source or error.start is None or error.side != "output":
        return explanation
    passage = (0, len(record.source))
    if resolve_task(record.task) != "translation":
        passage = EditableText(output=record.output, source=record.source).find_evidence(error.start) or (0, 0)
    elif sentences := EditableText(output=record.source).sentences:
        share = error.start / max(1, len(record.output))
        passage = sentences[min(int(share * len(sentences)), len(sentences) - 1)]
    evidence = record.source[slice(*passage)]
    return f"{explanation} The source: {quote(evidence, 160)}." if evidence else explanation


# ---- Good texts: references without errors, and faults put into them


def choose_good_texts(outputs: Sequence[JudgedOutput], good: Good | None = None) -> list[Record]:
    """Texts to put faults into: the first reference of each item, or the outputs in which nobody marked an error. By
    default references, and outputs of items without one."""
    texts: dict[tuple[str, str], Record] = {}
    with_reference = {output.record.item for output in outputs if any(map(str.strip, output.record.references))}
    for output in outputs:
        record = output.record
        reference = next((text for text in record.references if text.strip()), None)
        if reference is not None and good != "outputs":
            changed = replace(record, system="reference", output=reference, references=())
            texts.setdefault((record.item, "reference"), changed)
        use_output = good in ("outputs", "both") or (good is None and record.item not in with_reference)
        if use_output and not output.errors and record.output.strip():
            texts.setdefault((record.item, record.system), replace(record, references=()))
    return list(texts.values())


def use_references(outputs: Iterable[JudgedOutput]) -> Iterator[AnalysisExample]:
    """References as outputs without errors, one of each item."""
    seen: set[tuple[str, str | None]] = set()
    for output in outputs:
        record = output.record
        reference = next((text for text in record.references if text.strip()), None)
        if reference is None or (record.item, record.source) in seen:
            continue
        seen.add((record.item, record.source))
        yield make_example(replace(record, system="reference", output=reference), (), "reference")


#: Kinds that leave little of a text are chosen less often than others, and so are omissions, which only a reader who
#: knows what matters can tell from brevity: the share that remains.
_RARE: Mapping[str, float] = {"empty": 0.02, "gibberish": 0.25, "truncation": 0.5, "omission": 0.3}
_ATTEMPTS = 10


def inject_faults(
    texts: Sequence[Record],
    count: int,
    *,
    kinds: Sequence[str] | None = None,
    most: int = 3,
    channel: Channel = "synthetic",
    seed: int = 0,
) -> Iterator[AnalysisExample]:
    """At most `count` different examples of good texts with one to `most` faults each, about as many of each text.
    Aspects are chosen evenly, then the kinds of faults within them. In the channel `freeform`, the kind is the
    aspect."""
    if most < 1:
        raise SpecError(f"most must be at least 1, got {most}")
    by_task: dict[str | None, list[Record]] = {}
    for text in texts:
        by_task.setdefault(text.task, []).append(text)
    made = 0
    able = list(range(len(texts)))
    outputs: dict[int, set[str]] = {number: {text.output} for number, text in enumerate(texts)}
    round_ = 0
    while made < count and able:
        # All examples of a text in a row: what was computed for its source is still at hand.
        left = count - made
        quotas = {number: left // len(able) + (place < left % len(able)) for place, number in enumerate(able)}
        able = []
        for number, quota in quotas.items():
            text = texts[number]
            rng = random.Random(f"{seed}\0{channel}\0{round_}\0{text.item}\0{text.system}")
            new = 0
            for _ in range(quota):
                example = _inject(text, by_task[text.task], kinds, most, channel, rng)
                if example is None or example.output in outputs[number]:
                    continue
                outputs[number].add(example.output)
                new += 1
                yield example
            made += new
            if new or not quota:
                able.append(number)
        round_ += 1


def _inject(
    text: Record,
    peers: Sequence[Record],
    kinds: Sequence[str] | None,
    most: int,
    channel: Channel,
    rng: random.Random,
) -> AnalysisExample | None:
    donor = choose_donor(text, peers, rng)
    by_aspect: dict[str, list[str]] = {}
    for kind in kinds or list_kinds(text.task):
        if can_perturb(kind, text, donor):
            by_aspect.setdefault(choose_aspect(kind, text.task), []).append(kind)
    if not by_aspect:
        return None
    aspects = list(by_aspect)
    for _ in range(_ATTEMPTS):
        chosen: list[str] = []
        for _ in range(rng.randint(1, most)):
            kind = rng.choice(by_aspect[rng.choice(aspects)])
            if kind not in chosen and rng.random() < _RARE.get(kind, 1.0):
                chosen.append(kind)
        perturbed = perturb(text, chosen, seed=rng.getrandbits(32), donor=donor) if chosen else None
        if perturbed is not None and all(_can_be_noticed(edit, text) for edit in perturbed.edits):
            errors: Sequence[Error] = perturbed.errors
            if channel == "freeform":
                errors = [
                    replace(error, aspect=_NAMES.get(edit.kind) or edit.kind.replace("_", " ").title())
                    for error, edit in zip(errors, perturbed.edits, strict=True)
                ]
            return make_example(perturbed.record, errors, channel, exact=True)
    return None


#: Tasks whose outputs say what their sources say.
_GROUNDED = ("summarization", "simplification", "data_to_text", "long_form_qa", "translation")


def _can_be_noticed(edit: Edit, text: Record) -> bool:
    """Whether a reader of the source can tell that something is wrong: who learns from faults that cannot be noticed
    learns to make errors up."""
    if KINDS[edit.kind].concern != "facts" and edit.kind != "omission":
        return True
    task = resolve_task(text.task)
    if not text.source or (task not in _GROUNDED and edit.kind in ("addition", "omission", "negation", "role_swap")):
        return False
    if task == "translation" or edit.kind == "addition":
        return True
    if edit.evidence is None:
        return False
    original = text.output[edit.start : edit.end].strip().lower()
    passage = text.source[slice(*edit.evidence)].lower()
    return edit.kind in ("omission", "negation", "role_swap") or original in passage


#: Kinds of faults as people would call the error, where the name of the kind is another one.
_NAMES: Mapping[str, str] = {
    "entity": "Wrong Name", "number": "Wrong Number", "date": "Wrong Date", "unit": "Wrong Unit",
    "addition": "Unsupported Statement", "unrelated": "Unrelated Statement", "shuffle": "Order of Sentences",
    "operator": "Wrong Operation", "arithmetic": "Calculation", "untranslated": "Untranslated Word",
    "mistranslated": "Mistranslation", "empty": "No Output", "truncation": "Unfinished Text",
}  # fmt: skip
