"""Build the training data of the error analyst from published judgments and from faults put into good texts.

    python analyst_data.py DATA OUT [--written WRITTEN.json.xz] [--scale 1.0] [--max-tokens 2048] [--seed 0]

DATA is a folder with INDEX.tsv and files of records; OUT gets examples.jsonl and report.json, as `metrist build
error-analysis` writes them. Only sets whose `may_train` is yes or card are used, and none that the analyst, or another
shipped model, is judged on; examples that share text with a judged set are left out. WRITTEN has texts that a language
model wrote, [kind, prompt, text]; its stories are taken for good ones.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import operator
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from metrist.data.error_analysis.build import AnalysisBuildResult, BuildSettings, build_examples
from metrist.data.error_analysis.channels import JudgedOutput, read_outputs
from metrist.data.error_analysis.examples import AnalysisExample, Channel, make_example
from metrist.data.error_analysis.filters import FILTERS, FilterStep, apply_filters
from metrist.data.perturbations import list_kinds
from metrist.data.text_overlap import normalise_text
from metrist.io.reader import read_records
from metrist.ratings import Error
from metrist.records import Record
from metrist.sentences import split_sentences

#: Families and files that are judged: never trained on, and nothing that shares text with them.
JUDGED_FAMILIES = (
    "summeval", "qags", "rank19", "newsroom", "topical-chat-usr", "openmeva-roc", "pandalm", "llmbar", "wmt22", "wmt23",
    "lau-acceptability", "xsum", "gsm8k",
)  # fmt: skip
JUDGED_FILES = ("mlqe-pe.et-en", "wmt-qe23-mqm.zh-en")
#: Words of a run; the share of a text's runs that may occur in judged texts.
RUN, MOST_SHARED = 8, 0.05
_PLACEHOLDER = re.compile(r"\[[A-Z]+\]")

_LANGUAGES = {
    "de": "German", "en": "English", "es": "Spanish", "fr": "French", "ru": "Russian", "zh": "Chinese",
    "ro": "Romanian", "gu": "Gujarati", "kk": "Kazakh", "lt": "Lithuanian", "hin": "Hindi", "guj": "Gujarati",
    "tam": "Tamil", "mal": "Malayalam", "mar": "Marathi",
}  # fmt: skip
#: Instructions in other words than the default one of the task; {from_} and {to} are languages.
_WORDINGS: Mapping[str, Sequence[str]] = {
    "translation": (
        "Translate the following text from {from_} to {to}.", "Translate this into {to}.",
        "Give a translation of the {from_} text below into {to}.",
    ),
    "summarization": (
        "Summarize the article below.", "Give the main points of the following text in a few sentences.",
        "Write a summary of the given document.",
    ),
    "data_to_text": ("Turn the following data into text.", "State a fact that the table below gives."),
    "story": ("Continue the story.", "Write the rest of a short story that begins as follows."),
    "math": ("Solve the math word problem step by step.", "Answer the question and show your calculation."),
}  # fmt: skip


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


_CLAIM = "Write a statement that the text supports."
_TRANSLATION = "translation"
SOURCES = (
    *(
        Source(file=f"bio-mqm.{pair}", task=_TRANSLATION, human=human, synthetic=300, freeform=60)
        for pair, human in (
            ("zh-en", 4000), ("de-en", 2500), ("fr-en", 1500), ("es-en", 1500), ("ru-en", 1500), ("en-de", 1000),
            ("en-es", 800), ("en-fr", 800), ("en-ru", 800), ("en-zh", 1000),
        )
    ),
    # Their errors have no category.
    *(
        Source(file=f"wmt-qe23-mqm.{pair}", task=_TRANSLATION, human=2500, synthetic=400, freeform=60,
               aspects={"unspecified": "Accuracy"})
        for pair in ("en-de", "en-ru")
    ),
    *(
        Source(file=f"indicmt-eval.en-{language}", task=_TRANSLATION, human=150)
        for language in ("guj", "hin", "mal", "mar", "tam")
    ),
    *(
        Source(file=f"wmt19-darr.{pair}", task=_TRANSLATION, synthetic=900, reference=250, freeform=150)
        for pair in ("gu-en", "kk-en", "lt-en")
    ),
    *(
        Source(file=f"mlqe-pe.{pair}", task=_TRANSLATION, synthetic=500, freeform=80, good=("da", 92))
        for pair in ("ro-en", "ru-en", "en-zh", "en-de")
    ),
    Source(file="bump", task="summarization", human=900, synthetic=1200, reference=200, freeform=300,
           clean={"consistent": 1}),
    Source(file="realsumm", task="summarization", synthetic=1500, reference=100, freeform=300),
    Source(file="summedits", task="summarization", human=1100, synthetic=1500, freeform=300, clean={"consistent": 1},
           good=("consistent", 1)),
    Source(file="wice-tokens", task="summarization", instruction=_CLAIM, human=600),
    Source(file="wice-claims", task="summarization", instruction=_CLAIM, human=400, synthetic=700, freeform=150,
           good=("consistent", 1), clean={"consistent": 1}),
    Source(file="esnli", task="summarization", instruction=_CLAIM, human=300, synthetic=800, freeform=150,
           good=("consistent", 1), clean={"consistent": 1}),
    Source(file="infotabs", task="data_to_text", human=700, synthetic=2500, freeform=500, good=("consistent", 1),
           clean={"consistent": 1}),
    Source(file="bagel", task="data_to_text", synthetic=150, reference=50, freeform=40),
    Source(file="sfhot", task="data_to_text", synthetic=200, reference=60, freeform=40),
    Source(file="sfres", task="data_to_text", synthetic=200, reference=60, freeform=40),
    Source(file="gsml-train", task="data_to_text", human=60,
           aspects=dict.fromkeys(("name", "number", "word", "context", "not_checkable", "other"), "Accuracy")),
    Source(file="qa-feedback", task="long_form_qa", human=500, synthetic=1500, reference=250, freeform=300),
    Source(file="haluquestqa", task="long_form_qa", human=1300, synthetic=800, freeform=200,
           clean={"overall": 3.9}),
    Source(file="realec-dev", task="instruction_following", instruction="Write a correct English sentence.", human=2100,
           clean={"grammatical": 1}),
    Source(file="gmeg-wiki", task="instruction_following", instruction="Correct the text.", synthetic=600, freeform=100,
           good=("overall", 90)),
    Source(file="hhh-alignment", task="instruction_following", synthetic=500, reference=100, freeform=100),
    Source(file="heap-pairs", task="story", human=170, synthetic=1500, freeform=300, clean={"written": 1}),
)  # fmt: skip


# ---- Texts that are judged


class JudgedTexts:
    """The runs of words of all judged texts."""

    def __init__(self, data: Path, index: Sequence[Mapping[str, str]]) -> None:
        self._runs: set[int] = set()
        self._texts: set[str] = set()
        for row in index:
            if is_judged(row):
                for text in _read_texts(data / f"{row['file']}.jsonl.xz"):
                    self._add(text)
        for row in _read_rows(data / "realec-dev.jsonl.xz"):
            if is_reserved(row):
                self._add(row["output"])

    def _add(self, text: str) -> None:
        self._texts.add(normalise_text(text))
        self._runs.update(_hash_runs(text))

    def overlap(self, text: str) -> bool:
        """Whether a judged text is the same, or too many of the text's runs occur in judged texts."""
        if len(text) > 20 and normalise_text(text) in self._texts:
            return True
        runs = _hash_runs(text)
        return bool(runs) and sum(run in self._runs for run in runs) > MOST_SHARED * len(runs)


def is_judged(row: Mapping[str, str]) -> bool:
    """Whether a row of the index is a judged set."""
    return row["family"] in JUDGED_FAMILIES or row["file"] in JUDGED_FILES


def is_reserved(row: Mapping[str, Any]) -> bool:
    """Whether a row of realec-dev is in the half that is judged."""
    return int(row["item"]) % 2 == 0


def _hash_runs(text: str) -> list[int]:
    """A number for each run of words; the placeholders that stand for names in stories separate runs."""
    runs = []
    for part in _PLACEHOLDER.split(text):
        words = re.findall(r"\w+", part.lower())
        runs += [hash(tuple(words[at : at + RUN])) for at in range(len(words) - RUN + 1)]
    return runs


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def _read_texts(path: Path) -> set[str]:
    texts: set[str] = set()
    for row in _read_rows(path):
        found = [row.get("source"), row.get("output"), *(row.get("references") or ()), *(row.get("outputs") or ())]
        texts.update(text for text in found if isinstance(text, str))
    return texts


# ---- Reading


def read_source(data: Path, source: Source) -> list[JudgedOutput]:
    """The outputs of a file, with the task of the plan."""
    path = data / f"{source.file}.jsonl.xz"
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
        sure = {(str(row["item"]), str(row["system"])) for row in _read_rows(path) if _is_sure(row)}
        outputs = [
            output
            for output in outputs
            if (output.record.item, output.record.system) in sure or output.ratings.get("consistent") == 1
        ]
    return outputs


def _is_sure(row: Mapping[str, Any]) -> bool:
    return bool(row.get("errors")) and all(error.get("sure") for error in row["errors"])


def _read_pairs(path: Path, source: Source) -> list[JudgedOutput]:
    """Items with a reference, or with the answer that people prefer as the reference."""
    items: dict[str, JudgedOutput] = {}
    for row in _read_rows(path):
        references = row.get("references") or [row["outputs"][row["ratings"]["preference"][0] == 2]]
        record = Record(
            item=f"{source.file}:{row['source'][:80]}", system="pair", output="", source=row["source"],
            references=tuple(references[:1]), task=source.task, language=row.get("language"),
        )  # fmt: skip
        items.setdefault(row["source"], as_output(record))
    return list(items.values())


def _read_stories(path: Path) -> list[JudgedOutput]:
    """Stories of five sentences that people wrote: the first one is the source."""
    stories: dict[str, None] = {}
    for row in _read_rows(path):
        fields = dict(row["good"])
        if row["task"] in ("AG", "AV", "QA"):
            stories.setdefault(" ".join(fields["narrative"].split()))
        elif "original ending" in fields:
            # Its second sentence, which was changed, is joined to the first one without a space.
            beginning = re.match(r".*?[.!?](?=[A-Z])", fields["story"])
            if beginning:
                stories.setdefault(f"{beginning[0]} {' '.join(fields['original ending'].split())}")
    return [_make_story(f"heap:{number}", story) for number, story in enumerate(stories)]


def read_written_stories(path: Path) -> list[JudgedOutput]:
    """Stories that a language model wrote."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        rows = json.load(file)
    stories = {" ".join(text.split()): None for kind, _, text in rows if kind == "story"}
    return [_make_story(f"written:{number}", story) for number, story in enumerate(stories) if len(story) < 1500]


def _make_story(item: str, story: str) -> JudgedOutput:
    spans = split_sentences(story)
    cut = spans[1][0] if len(spans) > 2 else 0
    record = Record(item=item, system="human", output=story[cut:], source=story[:cut].strip(), task="story")
    return JudgedOutput(record=record, ratings={"written": 1.0}, scores={})


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
        changed = write_small(as_output(Record(item="", system="", output=words))).record.output
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
    """Stories with sentences of others, and with sentences said again, as weak systems write them: between one and all
    sentences are faulty. One in five stays as it is."""
    examples = []
    for number in range(count):
        rng = random.Random(f"{seed}\0mixed\0{number}")
        story = vary_style(rng.choice(stories), rng)
        style = str(story.record.item).partition(":")[0]
        change = {"small": write_small, "hidden": lambda other, rng=rng: hide_names(other, rng)}.get(
            style, lambda other: other
        )
        sentences = [story.record.output[start:end] for start, end in split_sentences(story.record.output)]
        if style in ("small", "hidden"):
            sentences = [part.strip() for part in re.findall(r"[^.!?]+[.!?]?", story.record.output) if part.strip()]
        faults: dict[int, str] = {}
        if rng.random() < 0.8:
            for place in rng.sample(range(len(sentences)), rng.randint(1, len(sentences))):
                if place and rng.random() < 0.25:
                    sentences[place] = sentences[rng.randrange(place)]
                    faults[place] = "again"
                else:
                    other = change(rng.choice(stories)).record.output
                    parts = [part.strip() for part in re.findall(r"[^.!?]+[.!?]?", other) if len(part) > 12]
                    sentences[place] = rng.choice(parts)
                    faults[place] = "other"
        if len(sentences) > 2 and rng.random() < 0.3 and not faults:
            sentences = sentences[: rng.randint(2, len(sentences))]
        errors, start = [], 0
        for place, sentence in enumerate(sentences):
            if place in faults:
                again = faults[place] == "again"
                errors.append(
                    Error(
                        aspect="Plot" if again else "Fit",
                        severity="minor" if again else "major",
                        penalty=2.0 if again else 3.0,
                        explanation=(
                            f"“{sentence}” has been said before."
                            if again
                            else f"This does not follow from the beginning: “{story.record.source}”."
                        ),
                        text=sentence,
                        start=start,
                        end=start + len(sentence),
                    )
                )
            start += len(sentence) + 1
        record = replace(story.record, output=" ".join(sentences), item=f"mixed:{number}:{story.record.item}")
        example = make_example(vary_instruction(as_output(record), seed).record, errors, "synthetic")
        examples.append(example if errors else replace(example, channel="human"))
    return examples


# ---- What summaries leave out


#: What summaries of the lowest third leave out: the least share of the facts, as a part of the share at which the third
#: ends, with the number of omissions and the penalty of each.
_OMISSIONS = ((1.0, (0, 0.0)), (2 / 3, (1, 1.5)), (1 / 3, (1, 3.0)), (0.0, (2, 3.0)))


def make_omissions(outputs: Sequence[JudgedOutput], seed: int) -> list[AnalysisExample]:
    """Summaries by systems, in which people counted the facts of the reference. Those of the lowest third leave out the
    more the fewer they have, and the passages of the source that have them are named; the others are good, and every
    third of them is there in small letters, too."""
    examples = []
    recalls = sorted(output.ratings["litepyramid_recall"] for output in outputs if output.ratings)
    third = recalls[len(recalls) // 3]
    for output in outputs:
        record, recall = output.record, output.ratings.get("litepyramid_recall")
        if recall is None or not record.references or not record.source or not record.output.strip():
            continue
        words = set(re.findall(r"\w+", record.output.lower()))
        facts = [record.references[0][start:end] for start, end in split_sentences(record.references[0])]
        facts = [fact.strip() for fact in facts if len(fact.split()) > 3]
        facts.sort(key=lambda fact: _share_words(fact, words))
        passages = [record.source[start:end] for start, end in split_sentences(record.source)]
        # How many passages are missing, and what each of them costs.
        missing, penalty = next(plan for least, plan in _OMISSIONS if recall >= least * third)
        errors: list[Error] = []
        seen: set[str] = set()
        for fact in facts:
            # The passage that says most of it, unless the summary has that, too.
            passage = max(passages, key=lambda text: _share_words(fact, set(re.findall(r"\w+", text.lower()))))
            said = set(re.findall(r"\w+", passage.lower()))
            if len(errors) == missing or passage in seen or _share_words(fact, said) < 0.4:
                continue
            if _share_words(passage, words) > 0.6:
                continue
            seen.add(passage)
            start = record.source.index(passage)
            errors.append(
                Error(
                    aspect="Relevance",
                    severity="major" if penalty > 2 else "minor",
                    penalty=penalty,
                    explanation=f"The summary leaves out one of the main points: {fact.rstrip(' .')}.",
                    text=passage,
                    start=start,
                    end=start + len(passage),
                    side="source",
                )
            )
        if errors or not missing:
            output = replace(output, record=replace(record, item=f"facts:{record.item}"))
            examples.append(make_example(vary_instruction(output, seed).record, errors, "human"))
            if not missing and len(examples) % 3 == 0:
                small_letters = vary_instruction(write_small(output), seed)
                examples.append(make_example(small_letters.record, [], "human"))
    return examples


def _share_words(text: str, words: set[str]) -> float:
    own = re.findall(r"\w+", text.lower())
    return sum(word in words for word in own) / max(1, len(own))


# ---- Word problems


_PEOPLE = (
    "Ana", "Ben", "Carla", "Dan", "Ella", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kim", "Lena", "Milo", "Nora",
    "Olga", "Pedro", "Rosa", "Sam", "Tina", "Umar",
)  # fmt: skip
_THINGS = ("pencils", "apples", "marbles", "stickers", "books", "cards", "shells", "coins", "beads", "cookies")
_BOXES = ("boxes", "bags", "packs", "crates", "jars")
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}

#: A step of a solution: a sentence with {} for the calculation, and the calculation. A number below 0 is the result of
#: the step so many places before.
Calculation = tuple[str, int, str, int]


def _sell(rng: random.Random) -> tuple[str, list[Calculation]]:
    who, thing, box = rng.choice(_PEOPLE), rng.choice(_THINGS), rng.choice(_BOXES)
    boxes, each, given, price = rng.randint(3, 12), rng.randint(4, 30), rng.randint(2, 9), rng.randint(2, 9)
    return (
        f"{who} has {boxes} {box} with {each} {thing} in each. {who} gives {given} {thing} to a friend and sells the "
        f"rest for ${price} each. How many dollars does {who} get?",
        [
            (f"{who} has {{}} {thing}.", boxes, "*", each),
            (f"After giving some away, {{}} {thing} are left.", -1, "-", given),
            (f"{who} gets {{}} dollars.", -1, "*", price),
        ],
    )


def _travel(rng: random.Random) -> tuple[str, list[Calculation]]:
    who = rng.choice(_PEOPLE)
    speed, hours, slow, more = rng.randint(20, 90), rng.randint(2, 6), rng.randint(5, 15), rng.randint(2, 5)
    return (
        f"{who} drives {hours} hours at {speed} km an hour, and then {more} hours at a speed that is {slow} km an hour "
        "less. How many km is that in all?",
        [
            (f"In the first {hours} hours {who} drives {{}} km.", speed, "*", hours),
            ("Then the speed is {} km an hour.", speed, "-", slow),
            ("That is {} km more.", -1, "*", more),
            ("In all it is {} km.", -3, "+", -1),
        ],
    )


def _share(rng: random.Random) -> tuple[str, list[Calculation]]:
    first, second = rng.sample(_PEOPLE, 2)
    thing = rng.choice(_THINGS)
    people, each = rng.randint(3, 9), rng.randint(4, 20)
    extra = rng.randint(2, people * each - 1)
    return (
        f"{first} has {people * each - extra} {thing} and gets {extra} more from {second}. Then {first} shares all "
        f"{thing} evenly among {people} children. How many {thing} does each child get?",
        [
            (f"With those of {second}, there are {{}} {thing}.", people * each - extra, "+", extra),
            (f"Each child gets {{}} {thing}.", -1, "/", people),
        ],
    )


def _save(rng: random.Random) -> tuple[str, list[Calculation]]:
    who = rng.choice(_PEOPLE)
    weekly, weeks, spent, days = rng.randint(25, 60), rng.randint(4, 10), rng.randint(5, 18), rng.randint(2, 5)
    return (
        f"{who} saves ${weekly} a week for {weeks} weeks. On a trip of {days} days {who} spends ${spent} a day. How "
        "many dollars are left?",
        [
            (f"{who} saves {{}} dollars.", weekly, "*", weeks),
            ("The trip costs {} dollars.", spent, "*", days),
            ("So {} dollars are left.", -2, "-", -1),
        ],
    )


def _twice(rng: random.Random) -> tuple[str, list[Calculation]]:
    first, second, third = rng.sample(_PEOPLE, 3)
    thing = rng.choice(_THINGS)
    own, times, more = rng.randint(3, 30), rng.randint(2, 5), rng.randint(2, 12)
    return (
        f"{first} has {own} {thing}. {second} has {times} times as many as {first}, and {third} has {more} more than "
        f"{second}. How many {thing} do the three have together?",
        [
            (f"{second} has {{}} {thing}.", own, "*", times),
            (f"{third} has {{}} {thing}.", -1, "+", more),
            (f"{first} and {second} have {{}} {thing}.", own, "+", -2),
            (f"All three have {{}} {thing}.", -1, "+", -2),
        ],
    )


def _work(rng: random.Random) -> tuple[str, list[Calculation]]:
    who = rng.choice(_PEOPLE)
    wage, hours, days, rent = rng.randint(11, 30), rng.randint(3, 9), rng.randint(3, 6), rng.randint(20, 90)
    return (
        f"{who} earns ${wage} an hour and works {hours} hours a day on {days} days a week. Each week {who} pays "
        f"${rent} for a room. How many dollars remain after 4 weeks?",
        [
            (f"In a day {who} earns {{}} dollars.", wage, "*", hours),
            ("In a week that is {} dollars.", -1, "*", days),
            ("After the room {} dollars remain each week.", -1, "-", rent),
            ("After 4 weeks it is {} dollars.", -1, "*", 4),
        ],
    )


_PROBLEMS = (_sell, _travel, _share, _save, _twice, _work)


@dataclass(frozen=True, slots=True)
class Mistake:
    """What goes wrong at one step of a solution: another operation, another number, or a slip of the result."""

    step: int
    operation: str | None = None
    number: int | None = None
    slip: int = 0


def solve(steps: Sequence[Calculation], marked: bool, mistake: Mistake | None = None) -> tuple[list[str], list[str]]:
    """The lines of a solution, and its calculations; a mistake is carried on. `marked`: with the calculator marks of
    GSM8K."""
    results: list[float] = []
    lines, calculations = [], []
    for place, (sentence, left, sign, right) in enumerate(steps):
        wrong = mistake if mistake is not None and mistake.step == place else None
        values = [results[value] if value < 0 else float(value) for value in (left, right)]
        if wrong and wrong.number is not None:
            values[1 if right >= 0 else 0] = float(wrong.number)
        sign = (wrong and wrong.operation) or sign
        result = _OPERATIONS[sign](*values) + (wrong.slip if wrong else 0)
        results.append(result)
        first, second, last = (f"{value:.2f}".rstrip("0").rstrip(".") for value in (*values, result))
        calculation = f"{first} {sign} {second} = "
        calculation += f"<<{first}{sign}{second}={last}>>{last}" if marked else last
        calculations.append(calculation)
        lines.append(sentence.format(calculation))
    lines.append(f"A: {last}")
    return lines, calculations


def make_problems(count: int, seed: int) -> list[JudgedOutput]:
    """Word problems with right solutions in the form of GSM8K, whose own problems are judged."""
    outputs = []
    for number in range(count):
        rng = random.Random(f"{seed}\0problem\0{number}")
        source, steps = rng.choice(_PROBLEMS)(rng)
        lines, _ = solve(steps, rng.random() < 0.5)
        record = Record(
            item=f"problem:{seed}:{number}", system="template", output="\n".join(lines), source=source, task="math"
        )
        outputs.append(JudgedOutput(record=record, ratings={"right": 1.0}, scores={}))
    return outputs


def make_wrong_solutions(count: int, seed: int) -> list[AnalysisExample]:
    """Word problems with solutions that go wrong at one step and carry the mistake on to the result."""
    examples = []
    for number in range(count):
        rng = random.Random(f"{seed}\0mistake\0{number}")
        source, steps = rng.choice(_PROBLEMS)(rng)
        marked, place = rng.random() < 0.5, rng.randrange(len(steps))
        _, left, sign, right = steps[place]
        given = sorted({int(text) for text in re.findall(r"\d+", source)} - {left, right})
        ways = ["slip", "operation", *(["number"] if given and max(left, right) >= 0 else [])]
        way = rng.choice(ways)
        if way == "slip":
            mistake = Mistake(place, slip=rng.choice((-10, -2, -1, 1, 2, 10)))
        elif way == "operation":
            mistake = Mistake(place, operation=rng.choice([other for other in "+-*" if other != sign]))
        else:
            mistake = Mistake(place, number=rng.choice(given))
        right_lines, right_calculations = solve(steps, marked)
        lines, calculations = solve(steps, marked, mistake)
        if lines[-1] == right_lines[-1]:
            continue
        wrong, better = calculations[place], right_calculations[place]
        quantity = right if right >= 0 else left
        passage = next(
            (text for text in re.split(r"(?<=[.?]) ", source) if re.search(rf"\b{quantity}\b", text)), source
        )
        aspect, explanation = {
            "slip": ("Computing Accuracy", f"The calculation is wrong: it should be “{better}”."),
            "operation": ("Problem Formulation", f"The operation is wrong: it should be “{better}”."),
            "number": ("Problem Understanding", f"The problem gives {quantity} here, not {mistake.number}."),
        }[way]
        if way != "slip":
            explanation += f" The source: “{passage}”."
        explanation += " The result is wrong because of it." if place < len(steps) - 1 else ""
        output = "\n".join(lines)
        start = sum(len(line) + 1 for line in lines[:place]) + lines[place].index(wrong)
        error = Error(
            aspect=aspect, severity="major", penalty=4.0, explanation=explanation, revision=better, text=wrong,
            start=start, end=start + len(wrong),
        )  # fmt: skip
        record = Record(item=f"mistake:{number}", system="template", output=output, source=source, task="math")
        examples.append(make_example(vary_instruction(as_output(record), seed).record, [error], "synthetic"))
    return examples


def as_output(record: Record) -> JudgedOutput:
    """A record that nobody judged."""
    return JudgedOutput(record=record, ratings={}, scores={})


# ---- Building


def vary_instruction(output: JudgedOutput, seed: int) -> JudgedOutput:
    """The output with its task's instruction in other words, every second time."""
    record = output.record
    wordings = _WORDINGS.get(record.task or "")
    rng = random.Random(f"{seed}\0wording\0{record.item}\0{record.system}")
    if not wordings or record.instruction or rng.random() < 0.5:
        return output
    codes = (record.language or "").split("-")
    from_, to = (_LANGUAGES.get(code, "") for code in (codes if len(codes) == 2 else ("", "")))
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

    def scale(count: int) -> int:
        return round(count * float(options.scale))

    changed = [vary_instruction(output, options.seed) for output in outputs]
    if source.good is not None:
        # Outputs with marked errors stay for these; faults are put into outputs without any.
        aspect, least = source.good
        changed = [output for output in changed if output.errors or output.ratings.get(aspect, -1e9) >= least]
    counts: dict[Channel, int] = {
        "human": scale(source.human), "synthetic": scale(source.synthetic), "reference": scale(source.reference),
        "freeform": scale(source.freeform),
    }  # fmt: skip
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


def main() -> None:
    """Build all examples, leave out what shares text with judged sets, and write them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--written", type=Path)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--max-tokens", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with (options.data / "INDEX.tsv").open(encoding="utf-8") as file:
        index = list(csv.DictReader(file, delimiter="\t"))
    by_file = {row["file"]: row for row in index}
    judged = JudgedTexts(options.data, index)
    examples: list[AnalysisExample] = []
    steps: dict[str, FilterStep] = {}
    made: Counter[str] = Counter()
    notes: list[str] = []

    def free_of_judged(output: JudgedOutput) -> bool:
        record = output.record
        return not any(judged.overlap(text) for text in (record.source or "", record.output, *record.references))

    def add(name: str, source: Source, outputs: Sequence[JudgedOutput]) -> None:
        free = [output for output in outputs if free_of_judged(output)]
        result = build_source(source, free, options)
        examples.extend(result.examples)
        made.update(result.made)
        for step in result.steps.values():
            total = steps.setdefault(step.name, FilterStep(step.name, step.description))
            total.removed += step.removed
            total.samples += step.samples[: 1 if len(total.samples) < 20 else 0]
        counts = Counter(example.channel for example in result.examples)
        note = f"{name}: {len(outputs):,} outputs, {len(outputs) - len(free):,} share text with judged sets; " + (
            ", ".join(f"{channel} {count:,}" for channel, count in sorted(counts.items()))
        )
        notes.append(note)
        print(note, flush=True)

    for source in SOURCES:
        row = by_file[source.file]
        assert row["may_train"] in ("yes", "card"), f"{source.file} may not be trained on"
        assert not is_judged(row), f"{source.file} is judged"
        outputs = read_source(options.data, source)
        add(source.file, source, outputs)
        if source.file in ("bump", "realsumm", "heap-pairs", "summedits"):
            unmarked = [write_small(output) for output in outputs if not output.errors]
            add(f"{source.file}, small letters", small(source), unmarked)

    def keep(name: str, made_here: Sequence[AnalysisExample], channel: str) -> None:
        kept = list(apply_filters(made_here, FILTERS, steps))
        examples.extend(kept)
        made[channel] += len(made_here)
        notes.append(f"{name}: {len(kept):,}")
        print(notes[-1], flush=True)

    stories = [story for story in read_source(options.data, SOURCES[-1]) if free_of_judged(story)]
    keep("mixed stories", make_mixed_stories(stories, round(3000 * options.scale), options.seed), "synthetic")
    summaries = [
        output
        for output in read_source(options.data, next(one for one in SOURCES if one.file == "realsumm"))
        if free_of_judged(output)
    ]
    keep("omissions", make_omissions(summaries, options.seed), "human")
    problems = Source(file="", task="math", human=1000, synthetic=1200, freeform=300, clean={"right": 1})
    add("word problems", problems, make_problems(2000, options.seed))
    keep("wrong solutions", make_wrong_solutions(round(2500 * options.scale), options.seed), "synthetic")
    if options.written:
        written = Source(file="", task="story", human=600, synthetic=2500, freeform=300, clean={"written": 1})
        stories = read_written_stories(options.written)
        add("written stories", written, stories[::2])
        add("written stories, small letters", small(written), [write_small(story) for story in stories[1::2]])
    random.Random(f"{options.seed}\0order").shuffle(examples)
    result = AnalysisBuildResult(examples=examples, steps=steps, made=made, shares=[], notes=notes)
    result.write(options.out)
    report = result.report()
    print(json.dumps({key: report[key] for key in ("examples", "statistics")}, indent=1))
    print({row["step"]: row["count"] for row in report["removed"]})


if __name__ == "__main__":
    main()
