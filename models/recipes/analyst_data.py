"""Build the training data of the error analyst from published judgments and from faults put into good texts.

    python analyst_data.py OUT [--scale 1.0] [--max-tokens 2048] [--seed 0]

analyst.toml says what is taken from which set. OUT gets examples.jsonl and report.json, as `metrist build
error-analysis` writes them, and chosen.jsonl, the examples of the training. Only sets whose `may_train` is yes or card
are used, and none that the analyst, or another shipped model, is judged on; examples that share text with a judged set
are left out.
"""

from __future__ import annotations

import argparse
import csv
import operator
import random
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sets import DATA, JudgedTexts, draw, read_arguments, read_lines, read_rows, write_lines

from metrist.data.error_analysis.build import AnalysisBuildResult, BuildSettings, build_examples
from metrist.data.error_analysis.channels import JudgedOutput, read_outputs
from metrist.data.error_analysis.examples import AnalysisExample, Channel, make_example
from metrist.data.error_analysis.filters import FILTERS, FilterStep, apply_filters
from metrist.data.perturbations import list_kinds, perturb
from metrist.io.reader import read_records
from metrist.records import Record
from metrist.sentences import split_sentences

#: Families and files that are judged: never trained on, and nothing that shares text with them.
JUDGED_FAMILIES = (
    "summeval", "qags", "rank19", "newsroom", "topical-chat-usr", "openmeva-roc", "pandalm", "llmbar", "wmt22", "wmt23",
    "lau-acceptability", "xsum", "gsm8k",
)  # fmt: skip
JUDGED_FILES = ("mlqe-pe.et-en", "wmt-qe23-mqm.zh-en")
RECIPE = tomllib.loads((Path(__file__).parent / "analyst.toml").read_text(encoding="utf-8"))
#: The most tokens of an example of the training, about; statements are not summaries.
_MOST_TOKENS, _CLAIM = 1400, "Write a statement that the text supports."


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is taken from one file. `human`, `synthetic`, `reference` and `freeform` are the most examples of each;
    `good` names the rating, and its least value, of outputs that are good enough to put faults into."""

    file: str
    task: str
    instruction: str | None = None
    human: int = 0
    synthetic: int = 0
    reference: int = 0
    freeform: int = 0
    good: tuple[str, float] | None = None
    clean: Mapping[str, float] = field(default_factory=dict)
    aspects: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()


# ---- Texts that are judged


def read_judged(index: Sequence[Mapping[str, str]]) -> JudgedTexts:
    reserved = (row["output"] for row in read_rows("realec-dev") if is_reserved(row))
    return JudgedTexts([row["file"] for row in index if is_judged(row)], reserved)


def is_judged(row: Mapping[str, str]) -> bool:
    return row["family"] in JUDGED_FAMILIES or row["file"] in JUDGED_FILES


def is_reserved(row: Mapping[str, Any]) -> bool:
    """Whether a row of realec-dev is in the half that is judged."""
    return int(row["item"]) % 2 == 0


# ---- Reading


def read_source(source: Source) -> list[JudgedOutput]:
    """The outputs of a file, with the task of the plan."""
    path = DATA / f"{source.file}.jsonl.xz"
    if source.file == "heap-pairs":
        return _read_stories(path)
    if source.file.startswith("wmt19") or source.file == "hhh-alignment":
        return _read_pairs(path, source)
    outputs = read_outputs(
        read_records(str(path), announce=lambda _: None), task=source.task, instruction=source.instruction
    )
    if source.file == "realec-dev":
        outputs = [output for output in outputs if not is_reserved({"item": output.record.item})]
    if source.file == "summedits":
        # Spans are differences; those that are not marked as sure are unreliable.
        sure = {
            (str(row["item"]), str(row["system"]))
            for row in read_lines(path)
            if row.get("errors") and all(error.get("sure") for error in row["errors"])
        }
        outputs = [
            output
            for output in outputs
            if (output.record.item, output.record.system) in sure or output.ratings.get("consistent") == 1
        ]
    return outputs


def _read_pairs(path: Path, source: Source) -> list[JudgedOutput]:
    """Items with a reference, or with the answer that people prefer as the reference."""
    items: dict[str, JudgedOutput] = {}
    for row in read_lines(path):
        references = row.get("references") or [row["outputs"][row["ratings"]["preference"][0] == 2]]
        record = Record(
            item=f"{source.file}:{row['source'][:80]}", system="pair", output="", source=row["source"],
            references=tuple(references[:1]), task=source.task, language=row.get("language"),
        )  # fmt: skip
        items.setdefault(row["source"], JudgedOutput(record=record))
    return list(items.values())


def _read_stories(path: Path) -> list[JudgedOutput]:
    """Stories of five sentences that people wrote: the first one is the source."""
    stories: dict[str, None] = {}
    for row in read_lines(path):
        fields = dict(row["good"])
        if row["task"] in ("AG", "AV", "QA"):
            stories.setdefault(" ".join(fields["narrative"].split()))
        elif "original ending" in fields:
            # Its second sentence, which was changed, is joined to the first one without a space.
            beginning = re.match(r".*?[.!?](?=[A-Z])", fields["story"])
            if beginning:
                stories.setdefault(f"{beginning[0]} {' '.join(fields['original ending'].split())}")
    return [_make_story(f"heap:{number}", story) for number, story in enumerate(stories)]


def _make_story(item: str, story: str) -> JudgedOutput:
    spans = split_sentences(story)
    cut = spans[1][0] if len(spans) > 2 else 0
    record = Record(item=item, system="human", output=story[cut:], source=story[:cut].strip(), task="story")
    return JudgedOutput(record=record, ratings={"written": 1.0})


def write_small(output: JudgedOutput) -> JudgedOutput:
    """The texts in small letters with marks set apart, as many systems and data sets have them."""

    def change(text: str) -> str:
        return " ".join(re.sub(r"(?<!\d)[.,:]|[.,:](?!\d)|[!?;()\"“”]", r" \g<0> ", text.lower()).split())

    record = output.record
    changed = replace(
        record,
        item=f"small:{record.item}",
        source=change(record.source or ""),
        output=change(record.output),
        references=tuple(map(change, record.references)),
    )
    return replace(output, record=changed)


# ---- Stories that do not hang together


def hide_names(output: JudgedOutput, rng: random.Random) -> JudgedOutput:
    """A story in small letters with placeholders for names, as data sets of stories have them."""
    text = f"{output.record.source} {output.record.output}"
    names = {name for name in re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", text) if name != "I"}
    people = {name: rng.choice(("[MALE]", "[FEMALE]")) for name in sorted(names)}

    def change(part: str) -> str:
        words = re.sub(r"\b[A-Z][a-z]+\b", lambda found: people.get(found[0], found[0]).strip("[]"), part)
        changed = write_small(JudgedOutput(record=Record(item="", system="", output=words))).record.output
        return re.sub(r"\b(female|male)\b", lambda found: f"[{found[0].upper()}]", changed)

    record = output.record
    changed = replace(
        record, item=f"hidden:{record.item}", source=change(record.source or ""), output=change(record.output)
    )
    return replace(output, record=changed)


def vary_style(output: JudgedOutput, rng: random.Random) -> JudgedOutput:
    """A story as it is, in small letters, or with hidden names."""
    return rng.choice((lambda: output, lambda: write_small(output), lambda: hide_names(output, rng)))()


def make_mixed_stories(stories: Sequence[JudgedOutput], count: int, seed: int) -> list[AnalysisExample]:
    """Stories with sentences of others, and with sentences said again, as weak systems write them. One in five stays as
    it is."""
    examples = []
    for number in range(count):
        rng = random.Random(f"{seed}\0mixed\0{number}")
        story, donor = (vary_style(rng.choice(stories), rng).record for _ in range(2))
        record = vary_instruction(JudgedOutput(record=replace(story, item=f"mixed:{number}:{story.item}")), seed).record
        if rng.random() < 0.2:
            examples.append(make_example(record, [], "human"))
            continue
        kinds = rng.choices(("unrelated", "unrelated", "repetition", "shuffle"), k=rng.randint(1, 3))
        if made := perturb(record, sorted(set(kinds)), seed=seed, donor=donor):
            examples.append(make_example(made.record, list(made.errors), "synthetic"))
    return examples


# ---- Word problems


_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
#: A step of a solution: a sentence with {} for the calculation, and the calculation. A number below 0 is the result of
#: the step so many places before.
Calculation = tuple[str, int, str, int]


def draw_problem(rng: random.Random) -> tuple[str, list[Calculation]]:
    """Draw a problem of the recipe; return its text and the steps of its solution."""
    problem = rng.choice(RECIPE["problems"])
    people = rng.sample(RECIPE["names"]["who"].split(), 3)
    words = dict(zip(("who", "other", "third"), people, strict=True))
    words |= {name: rng.choice(RECIPE["names"][name].split()) for name in ("thing", "box")}
    numbers = {name: rng.randint(*bounds) for name, bounds in problem["numbers"].items()}
    for name, left, sign, right in problem.get("derived", ()):
        numbers[name] = _OPERATIONS[sign](numbers[left], numbers[right])

    def fill(text: str) -> str:
        """Leave the place of the calculation as it is."""
        return "{}".join(part.format(**words, **numbers) for part in text.split("{}"))

    steps = [
        (fill(sentence), numbers.get(left, left), sign, numbers.get(right, right))
        for sentence, left, sign, right in problem["steps"]
    ]
    return fill(problem["text"]), steps


def solve(steps: Sequence[Calculation], *, marked: bool) -> list[str]:
    """The lines of a solution; `marked`: with the calculator marks of GSM8K."""
    results: list[float] = []
    lines = []
    for sentence, left, sign, right in steps:
        values = [results[value] if value < 0 else float(value) for value in (left, right)]
        results.append(_OPERATIONS[sign](*values))
        first, second, last = (f"{value:.2f}".rstrip("0").rstrip(".") for value in (*values, results[-1]))
        result = f"<<{first}{sign}{second}={last}>>{last}" if marked else last
        lines.append(sentence.format(f"{first} {sign} {second} = {result}"))
    return [*lines, f"A: {last}"]


def make_problems(count: int, seed: int) -> list[JudgedOutput]:
    """Word problems with right solutions in the form of GSM8K, whose own problems are judged."""
    outputs = []
    for number in range(count):
        rng = random.Random(f"{seed}\0problem\0{number}")
        source, steps = draw_problem(rng)
        lines = solve(steps, marked=rng.random() < 0.5)
        record = Record(
            item=f"problem:{seed}:{number}", system="template", output="\n".join(lines), source=source, task="math"
        )
        outputs.append(JudgedOutput(record=record, ratings={"right": 1.0}))
    return outputs


# ---- Building


def vary_instruction(output: JudgedOutput, seed: int) -> JudgedOutput:
    """The output with its task's instruction in other words, every second time."""
    record = output.record
    wordings = RECIPE["wordings"].get(record.task or "")
    rng = random.Random(f"{seed}\0wording\0{record.item}\0{record.system}")
    if not wordings or record.instruction or rng.random() < 0.5:
        return output
    codes = (record.language or "").split("-")
    from_, to = (RECIPE["languages"].get(code, "") for code in (codes if len(codes) == 2 else ("", "")))
    wording = rng.choice(wordings)
    if "{" in wording and not (from_ and to):
        return output
    return replace(output, record=replace(record, instruction=wording.format(from_=from_, to=to)))


def small(source: Source) -> Source:
    """A third as much of a source, for texts in small letters: faults of letters and marks would not be any there."""
    third = {name: getattr(source, name) // 3 for name in ("human", "synthetic", "reference", "freeform")}
    return replace(source, without=("capitalisation", "punctuation"), **third)


def build_source(source: Source, outputs: Sequence[JudgedOutput], options: argparse.Namespace) -> AnalysisBuildResult:
    """The examples of one file, at most as many of each channel as planned."""

    changed = [vary_instruction(output, options.seed) for output in outputs]
    if source.good is not None:
        # Outputs with marked errors stay for these; faults are put into outputs without any.
        aspect, least = source.good
        changed = [output for output in changed if output.errors or output.ratings.get(aspect, -1e9) >= least]
    channels: tuple[Channel, ...] = ("human", "synthetic", "reference", "freeform")
    planned = {name: getattr(source, name) for name in channels}
    counts = {name: max(min(count, 1), round(count * options.scale)) for name, count in planned.items()}
    settings = BuildSettings(
        channels=tuple(name for name, count in counts.items() if count),
        synthetic=counts["synthetic"],
        freeform=counts["freeform"],
        kinds=tuple(kind for kind in list_kinds(source.task) if kind not in source.without),
        aspects=source.aspects,
        clean=source.clean,
        max_tokens=options.max_tokens,
        seed=options.seed,
    )
    result = build_examples(changed, settings)
    taken: Counter[str] = Counter()
    limited = []
    for example in result.examples:
        # Errors that people name freely are part of what they marked.
        if taken[example.channel] < counts[example.channel] or example.channel == "freeform":
            taken[example.channel] += 1
            limited.append(example)
    result.examples = limited
    return result


def choose_examples(examples: Sequence[AnalysisExample], rng: random.Random, scale: float) -> Iterator[AnalysisExample]:
    """Yield as many examples of each task as planned; a token has about four characters."""
    by_task: dict[str, list[AnalysisExample]] = defaultdict(list)
    for example in examples:
        by_task[str(example.task)].append(example)
    for task, own in by_task.items():
        left = RECIPE["shares"].get(task, 1e3) * 1e6 * scale
        for example in sorted(own, key=lambda example: rng.random() ** (1 / _favour(example)), reverse=True):
            size = (len(example.prompt) + len(example.completion)) / 4
            if left > 0 and size <= _MOST_TOKENS:
                left -= size
                yield example


def _favour(example: AnalysisExample) -> float:
    """How much likelier than others an example is chosen."""
    if example.task == "summarization":
        if example.instruction == _CLAIM:
            return 0.4
        return 2.0 if not example.errors else 1.0
    if example.task != "translation":
        return 1.0
    pair = example.item.split(":")[0].replace("_", "-")
    weight = next((weight for name, weight in RECIPE["favoured"].items() if name in pair), 0.7)
    return float(weight * (1.5 if example.channel in ("human", "reference") else 1.0))


class Builder:
    """Collects examples, and what was left out."""

    def __init__(self, options: argparse.Namespace, judged: JudgedTexts) -> None:
        self.options, self.judged = options, judged
        self.result = AnalysisBuildResult(examples=[], steps={}, made=Counter(), shares=[], notes=[])

    def free(self, outputs: Iterable[JudgedOutput]) -> list[JudgedOutput]:
        """Return the outputs that share no text with judged sets."""
        return [
            one for one in outputs if self.judged.free(one.record.source, one.record.output, *one.record.references)
        ]

    def add(self, name: str, source: Source, outputs: Sequence[JudgedOutput]) -> None:
        free = self.free(outputs)
        built = build_source(source, free, self.options)
        self.result.examples += built.examples
        self.result.made.update(built.made)
        for step in built.steps.values():
            total = self.result.steps.setdefault(step.name, FilterStep(step.name, step.description))
            total.removed += step.removed
            total.samples += step.samples[: 1 if len(total.samples) < 20 else 0]
        self._note(
            f"{name}: {len(built.examples):,} of {len(outputs):,} outputs; {len(outputs) - len(free):,} are judged"
        )

    def keep(self, name: str, examples: Sequence[AnalysisExample], channel: str) -> None:
        kept = list(apply_filters(examples, FILTERS, self.result.steps))
        self.result.examples += kept
        self.result.made[channel] += len(examples)
        self._note(f"{name}: {len(kept):,}")

    def _note(self, text: str) -> None:
        self.result.notes.append(text)
        print(text, flush=True)


def main() -> None:
    options = read_arguments(__doc__, "out", scale=1.0, max_tokens=2048, seed=0)
    with (DATA / "INDEX.tsv").open(encoding="utf-8") as file:
        index = list(csv.DictReader(file, delimiter="	"))
    by_file = {row["file"]: row for row in index}
    builder = Builder(options, read_judged(index))
    sources = {entry["file"]: Source(**entry) for entry in RECIPE["sources"]}
    for source in sources.values():
        row = by_file[source.file]
        assert row["may_train"] in ("yes", "card"), f"{source.file} may not be trained on"
        assert not is_judged(row), f"{source.file} is judged"
        outputs = read_source(source)
        if options.scale < 1:
            outputs = draw(outputs, 40 + round(options.scale * len(outputs)), random.Random(0))
        builder.add(source.file, source, outputs)
        if source.file in ("bump", "realsumm", "heap-pairs", "summedits"):
            unmarked = [write_small(output) for output in outputs if not output.errors]
            builder.add(f"{source.file}, small letters", small(source), unmarked)
    seed, count = options.seed, round(3000 * options.scale) or 5
    stories = builder.free(read_source(sources["heap-pairs"]))
    builder.keep("mixed stories", make_mixed_stories(stories, count, seed), "synthetic")
    problems = Source(file="", task="math", human=1000, synthetic=3700, freeform=300, clean={"right": 1})
    builder.add("word problems", problems, make_problems(2000, seed))
    result = builder.result
    random.Random(f"{seed}\0order").shuffle(result.examples)
    result.write(options.out)
    chosen = list(choose_examples(result.examples, random.Random(0), options.scale))
    write_lines(options.out / "chosen.jsonl", (example.to_dict() for example in chosen))
    print(f"{len(result.examples):,} examples, {len(chosen):,} of them for the training")


if __name__ == "__main__":
    main()
