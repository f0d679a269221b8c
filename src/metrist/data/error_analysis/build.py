"""Build a training set of error analyses: examples of all channels, filtered, mixed and shuffled, with a report.

The same records and settings give the same bytes. LLM answers come through the answer cache: a build that was stopped
goes on where it was, and no answer is paid for twice.
"""

from __future__ import annotations

import json
import os
import random
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any

from metrist.data.error_analysis.channels import (
    JudgedOutput,
    choose_good_texts,
    inject_faults,
    use_human_errors,
    use_references,
)
from metrist.data.error_analysis.examples import CHANNELS, AnalysisExample, Channel, write_examples
from metrist.data.error_analysis.filters import (
    FILTERS,
    FilterStep,
    TokenCounter,
    apply_filters,
    count_tokens,
    drop_duplicates,
    limit_length,
    read_counter,
)
from metrist.data.error_analysis.teacher import (
    analyse_outputs,
    choose_in_thirds,
    choose_outputs,
    describe_failures,
    generate_outputs,
    inject_by_llm,
    review_examples,
)
from metrist.data.perturbations import check_kinds
from metrist.data.settings import ExampleSettings
from metrist.documents import read_toml
from metrist.errors import InputError, SpecError, check_known, format_path
from metrist.io.writer import atomic_write
from metrist.llm.base import LLM
from metrist.llm.estimate import current_estimate
from metrist.metrics.prompt_layout import resolve_task
from metrist.runtime import Runtime

#: The files of a training set.
EXAMPLES, CHAT, REPORT = "examples.jsonl", "chat.jsonl", "report.json"
#: The part of a mix that counts examples of all tasks.
ANY_TASK = "any"
#: Upper bounds of the lengths that statistics count, in tokens.
_LENGTHS = (128, 256, 384, 512, 640, 768, 896, 1024)
_MOST_ERRORS = 5


# ---- Mixes


@dataclass(frozen=True, slots=True)
class MixCell:
    """A number of examples of a task (or of any) from one or more channels."""

    task: str
    channels: tuple[Channel, ...]
    count: int

    def includes(self, example: AnalysisExample) -> bool:
        """Whether the example counts here."""
        return example.channel in self.channels and self.task in (ANY_TASK, example.task)


def read_mix(name_or_path: str) -> tuple[MixCell, ...]:
    """A shipped mix, such as `paper`, or one of a TOML file: `[summarization]` with `real = 4179`."""
    shipped = tomllib.loads((resources.files(__package__) / "mixes.toml").read_text(encoding="utf-8"))
    if name_or_path in shipped:
        return _parse_mix(shipped[name_or_path], name_or_path)
    path = Path(name_or_path)
    if not path.is_file():
        check_known("mix or TOML file", name_or_path, shipped)
    return _parse_mix(read_toml(path, SpecError, largest=1 << 20), format_path(path))


def _parse_mix(content: Mapping[str, Any], place: str) -> tuple[MixCell, ...]:
    cells = []
    for task, row in content.items():
        known = ANY_TASK if task == ANY_TASK else resolve_task(task)
        if known is None or not isinstance(row, Mapping):
            raise SpecError(f"{place}: expected tables named by a task or 'any', got {task!r}")
        for names, count in row.items():
            channels = tuple(name.strip() for name in names.split("+"))
            for name in channels:
                check_known(f"channel of [{task}] in {place}:", name, CHANNELS)
            if type(count) is not int or count < 0:
                raise SpecError(f"{place}: [{task}] {names} must be a number of examples, got {count!r}")
            cells.append(MixCell(known, channels, count))
    if not any(cell.count for cell in cells):
        raise SpecError(f"{place}: the mix has no examples")
    return tuple(cells)


def apply_mix(
    examples: Sequence[AnalysisExample], mix: Sequence[MixCell], size: int | None = None, seed: int = 0
) -> tuple[list[AnalysisExample], list[dict[str, Any]]]:
    """Take as many examples of each cell as the mix says, or `size` in the proportions of the cells that have any. An
    example counts in the first cell that includes it; a cell that has too few gives all of them. Return them, and for
    each cell how many there were, how many were to be taken, and how many were."""
    groups: dict[MixCell, list[AnalysisExample]] = {cell: [] for cell in mix}
    for example in examples:
        for cell, group in groups.items():
            if cell.includes(example):
                group.append(example)
                break
    total = sum(cell.count for cell, group in groups.items() if group)
    taken: list[AnalysisExample] = []
    shares = []
    for number, (cell, group) in enumerate(groups.items()):
        expected = cell.count
        if size is not None:
            expected = round(size * cell.count / total) if group else 0
        chosen = random.Random(f"{seed}\0mix\0{number}").sample(group, min(expected, len(group)))
        taken += chosen
        counts = {"available": len(group), "expected": expected, "taken": len(chosen)}
        shares.append({"task": cell.task, "channel": "+".join(cell.channels), **counts})
    return taken, shares


# ---- Building


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSettings(ExampleSettings):
    """What to build. `synthetic` and `freeform` are numbers of examples with faults put into good texts (None: one for
    each text); the other channels give what there is.

    `llm` is the teacher: it analyses at most `real` outputs of each task (None: all), also those that the LLMs of
    `generate` give; with `inject` it puts the synthetic errors in; and it finds errors under free-form aspects in
    other outputs. `review` is the LLM that decides which of the teacher's analyses are reasonable."""

    channels: tuple[Channel, ...] = ("human", "synthetic", "reference", "freeform")
    llm: LLM | None = None
    generate: tuple[LLM, ...] = ()
    review: LLM | None = None
    mix: tuple[MixCell, ...] | None = None

    def __post_init__(self) -> None:
        for name in self.channels:
            check_known("channel", name, CHANNELS)
        if self.kinds is not None:
            check_kinds(self.kinds)
        if self.llm is None and ("real" in self.channels or self.inject or self.generate):
            what = "the channel 'real'" if "real" in self.channels else "generate" if self.generate else "inject"
            raise SpecError(
                f"{what} needs an LLM that analyses outputs, such as \"openai(model='gpt-4o-mini')\": give `llm`",
                code="missing_value",
            )
        if self.size is not None and self.mix is None:
            raise SpecError(
                "size is the number of examples of a mix: name one, such as mix='paper'", code="missing_value"
            )


@dataclass(slots=True, kw_only=True)
class AnalysisBuildResult:
    """The examples in their final order, and how they came about. `made` counts the examples of each channel before the
    filters."""

    examples: list[AnalysisExample]
    steps: dict[str, FilterStep]
    made: Counter[str]
    shares: list[dict[str, Any]]
    notes: list[str]
    count_tokens: TokenCounter = count_tokens

    def report(self) -> dict[str, Any]:
        """The account as plain data."""
        return {
            "examples": len(self.examples),
            "made": dict(self.made),
            "removed": [
                {"step": step.name, "why": step.description, "count": step.removed, "samples": step.samples}
                for step in self.steps.values()
            ],
            "mix": self.shares,
            "statistics": describe_examples(self.examples, self.count_tokens),
            "notes": self.notes,
        }

    def write(self, folder: str | os.PathLike[str], *, chat: bool = False) -> None:
        """Write the examples and the report into a folder."""
        target = Path(folder)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{format_path(target)} cannot be made: {error.strerror}", code="cannot_write") from None
        write_examples(target / EXAMPLES, self.examples)
        if chat:
            write_examples(target / CHAT, self.examples, chat=True)
        with atomic_write(target / REPORT) as file:
            json.dump(self.report(), file, ensure_ascii=False, indent=1)


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Raise InputError if a training set cannot be written there: better now than when it was built."""
    target = Path(folder).absolute()
    existing = next(path for path in (target, *target.parents) if path.exists())
    if not existing.is_dir():
        raise InputError(f"{format_path(existing)} is a file; expected a folder for the examples")
    if not os.access(existing, os.W_OK):
        raise InputError(
            f"{format_path(existing)} cannot be written to; name another folder for the examples", code="cannot_write"
        )


def build_examples(
    outputs: Sequence[JudgedOutput],
    settings: BuildSettings,
    *,
    scores: Mapping[tuple[str, str], float] | None = None,
    runtime: Runtime | None = None,
) -> AnalysisBuildResult:
    """Build a training set from outputs. `scores` are those of a likelihood metric, by item and system: the outputs for
    the teacher are chosen in thirds by them."""
    steps: dict[str, FilterStep] = {}
    made: Counter[str] = Counter()

    def count(examples: Iterable[AnalysisExample]) -> Iterator[AnalysisExample]:
        for example in examples:
            made[example.channel] += 1
            yield example

    taught = list(_ask_teacher(outputs, settings, scores or {}, steps, runtime))
    counter = read_counter(settings.tokenizer) if settings.tokenizer else None
    filters = (*FILTERS, limit_length(settings.max_tokens, counter), drop_duplicates())
    if current_estimate() is not None:
        if settings.review is not None:
            review_examples(taught, settings.review, steps, runtime)
        return AnalysisBuildResult(examples=[], steps=steps, made=made, shares=[], notes=[])
    examples = list(apply_filters(count(chain(taught, _make_examples(outputs, settings))), filters, steps))
    if settings.review is not None:
        ids = {example.id for example in taught}
        reviewed = [example for example in examples if example.id in ids]
        reasonable = {example.id for example in review_examples(reviewed, settings.review, steps, runtime)}
        examples = [example for example in examples if example.id not in ids or example.id in reasonable]
    if not examples:
        removed = ", ".join(f"{step.name} {step.removed:,}" for step in steps.values() if step.removed)
        raise InputError(
            f"the records give no examples: expected errors, references or good outputs in the channels "
            f"{', '.join(settings.channels)}" + (f"; removed by filters: {removed}" if removed else ""),
            code="invalid_value",
        )
    shares: list[dict[str, Any]] = []
    if settings.mix is not None:
        before = len(examples)
        examples, shares = apply_mix(examples, settings.mix, settings.size, settings.seed)
        steps["mix"] = FilterStep("mix", "the mix has enough examples of this task and channel", before - len(examples))
    random.Random(f"{settings.seed}\0order").shuffle(examples)
    return AnalysisBuildResult(
        examples=examples,
        steps=steps,
        made=made,
        shares=shares,
        notes=describe_failures(steps),
        count_tokens=counter or count_tokens,
    )


def _ask_teacher(
    outputs: Sequence[JudgedOutput],
    settings: BuildSettings,
    scores: Mapping[tuple[str, str], float],
    steps: dict[str, FilterStep],
    runtime: Runtime | None,
) -> Iterator[AnalysisExample]:
    """The examples that the LLM makes."""
    llm = settings.llm
    if llm is None:
        return
    if "real" in settings.channels or "freeform" in settings.channels:
        generated = generate_outputs(outputs, settings.generate, steps, runtime) if settings.generate else []
        # What people marked is not asked for.
        human = "human" in settings.channels
        candidates = [*(o for o in outputs if not (human and (o.errors or o.raters))), *generated]
        if "real" in settings.channels:
            chosen = choose_outputs(candidates, settings.real, scores, settings.seed)
            yield from analyse_outputs(chosen, llm, steps, runtime=runtime)
            taken = {(output.record.item, output.record.system) for output in chosen}
            candidates = [o for o in candidates if (o.record.item, o.record.system) not in taken]
        if "freeform" in settings.channels and settings.freeform:
            rng = random.Random(f"{settings.seed}\0freeform")
            chosen = choose_in_thirds(candidates, settings.freeform, scores, rng)
            yield from analyse_outputs(chosen, llm, steps, channel="freeform", runtime=runtime)
    if "synthetic" in settings.channels and settings.inject:
        texts = choose_good_texts(outputs, settings.good)
        number = len(texts) if settings.synthetic is None else settings.synthetic
        yield from inject_by_llm(
            texts, llm, number, steps, most=settings.most_faults, seed=settings.seed, runtime=runtime
        )


def _make_examples(outputs: Sequence[JudgedOutput], settings: BuildSettings) -> Iterator[AnalysisExample]:
    """The examples of the channels that need no LLM; the rarest first, because of equal prompts the first is kept."""
    if "human" in settings.channels:
        yield from use_human_errors(outputs, aspects=settings.aspects, clean=settings.clean, seed=settings.seed)
    if "reference" in settings.channels:
        yield from use_references(outputs)
    offline: dict[Channel, int | None] = {}
    if "synthetic" in settings.channels and not settings.inject:
        offline["synthetic"] = settings.synthetic
    if "freeform" in settings.channels and settings.llm is None:
        offline["freeform"] = settings.freeform
    texts = choose_good_texts(outputs, settings.good) if offline else []
    for channel, number in offline.items():
        yield from inject_faults(
            texts, len(texts) if number is None else number, kinds=settings.kinds, most=settings.most_faults,
            channel=channel, seed=settings.seed,
        )  # fmt: skip


# ---- Statistics


def describe_examples(examples: Iterable[AnalysisExample], count: TokenCounter = count_tokens) -> dict[str, Any]:
    """What the TIGERScore paper's Figure 4 shows: lengths, errors per example, severities by task; and tasks by
    channel, and aspects by task."""
    lengths: dict[str, Counter[str]] = {}
    errors: dict[str, Counter[str]] = {}
    severities: dict[str, Counter[str]] = {}
    channels: dict[str, Counter[str]] = {}
    aspects: dict[str, Counter[str]] = {}
    for example in examples:
        task = example.task or "other"
        tokens, listed = count(example), len(example.errors)
        length = next((f"up to {bound}" for bound in _LENGTHS if tokens <= bound), f"over {_LENGTHS[-1]}")
        lengths.setdefault(task, Counter())[length] += 1
        number = str(listed) if listed < _MOST_ERRORS else f"{_MOST_ERRORS} or more"
        errors.setdefault(task, Counter())[number] += 1
        channels.setdefault(task, Counter())[example.channel] += 1
        for error in example.errors:
            severities.setdefault(task, Counter())[error.severity or "none"] += 1
            if example.channel != "freeform":
                aspects.setdefault(task, Counter())[error.aspect] += 1
    order = [f"up to {bound}" for bound in _LENGTHS] + [f"over {_LENGTHS[-1]}"]
    all_lengths = sum(lengths.values(), Counter[str]())
    all_errors = sum(errors.values(), Counter[str]())
    return {
        "tokens": {name: all_lengths[name] for name in order if all_lengths[name]},
        "tokens by task": {
            task: {name: counts[name] for name in order if counts[name]} for task, counts in sorted(lengths.items())
        },
        "errors per example": dict(sorted(all_errors.items())),
        "errors per example by task": {task: dict(sorted(counts.items())) for task, counts in sorted(errors.items())},
        "severities": {task: dict(sorted(counts.items())) for task, counts in sorted(severities.items())},
        "channels": {
            task: {name: counts[name] for name in CHANNELS if counts[name]} for task, counts in sorted(channels.items())
        },
        "aspects": {task: dict(counts.most_common()) for task, counts in sorted(aspects.items())},
    }
