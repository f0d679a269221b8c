"""Judge the errors that the shipped explainer marks: against people's spans, on families that no model has seen.

    python explainer_agreement.py spans [METRIC ...]        the XSum family: cliff, goyal21, entfa
    python explainer_agreement.py grammar [METRIC ...]      the reserved half of realec-dev
    python explainer_agreement.py summaries METRIC          SummEval: agreement with consistency, references, speed

Marks of several metrics are joined, as `metrist explain` shows them. Figures are F1 of characters over all outputs of a
set together, with 95 % intervals from 1,000 resamples of the outputs. Beside the metrics stand all of the text; words
drawn at random and the tokens that the shipped likelihood finds least likely, both with as many characters as the
metrics marked. True but unsupported entities of entfa count neither as errors nor as misses; how many of them are
marked is printed. METRIST_TEST_DATA is the folder of human judgments.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from agreement import Row, correlate_by_item, mean_rating, rows, spearman
from numpy.typing import NDArray

import metrist
from metrist import Record

Marks = NDArray[np.bool_]
XSUM = ("cliff", "goyal21", "entfa")
_TRUE = "Factual Hallucination"
_RESAMPLES, _DRAWS = 1_000, 20
#: The likelihood needs a source; sentences of learners have none.
_NO_SOURCE = "A text."
LIKELIHOOD, SENTENCES = "likelihood", "consistency"


class Case(NamedTuple):
    """An output with the characters that people marked, and those that do not count."""

    record: Record
    gold: Marks
    ignored: Marks


def read_cases(name: str) -> list[Case]:
    cases = []
    for number, row in enumerate(rows(name)):
        if name == "realec-dev" and int(row["item"]) % 2:
            continue
        text = row["output"]
        gold, ignored = np.zeros(len(text), bool), np.zeros(len(text), bool)
        for error in row.get("errors", ()):
            if error.get("start") is not None:
                (ignored if error["category"] == _TRUE else gold)[error["start"] : error["end"]] = True
        record = Record(
            item=f"{name}:{number}", system=row["system"], output=text, source=row.get("source"), language="en"
        )
        cases.append(Case(record, gold, ignored & ~gold))
    return cases


# ---- Marks


def mark_errors(cases: Sequence[Case], metrics: Sequence[str]) -> dict[str, list[Marks]]:
    """Return the characters that each metric marks."""
    results = metrist.score([case.record for case in cases], list(metrics))
    marks = {}
    for name in metrics:
        block = results.scores[name]
        own = [np.zeros(len(case.gold), bool) for case in cases]
        for number, errors in block.errors.items():
            for error in errors:
                if error.start is not None and error.side == "output":
                    own[number][error.start : error.end] = True
        marks[name] = own
    return marks


def find_words(text: str) -> list[tuple[int, int]]:
    spans, start = [], 0
    for word in text.split():
        start = text.index(word, start)
        spans.append((start, start + len(word)))
        start += len(word)
    return spans


def mark_random(cases: Sequence[Case], share: float, seed: int) -> list[Marks]:
    """Mark words at random until a share of all characters is marked."""
    rng = np.random.default_rng(seed)
    marks = [np.zeros(len(case.gold), bool) for case in cases]
    words = [(number, *span) for number, case in enumerate(cases) for span in find_words(case.record.output)]
    left = share * sum(map(len, marks))
    for at in rng.permutation(len(words)):
        if left <= 0:
            break
        number, start, end = words[at]
        marks[number][start:end] = True
        left -= end - start
    return marks


Token = tuple[float, int, int, int]


def read_likelihoods(cases: Sequence[Case], cache: Path | None = None) -> list[Token]:
    """Return the log-probability, the number of the output and the characters of each token, from a file if there is
    one."""
    if cache is not None and cache.exists():
        return [(value, number, start, end) for value, number, start, end in json.loads(cache.read_text())]
    result = list(_compute_likelihoods(cases))
    if cache is not None:
        cache.write_text(json.dumps(result))
    return result


def _compute_likelihoods(cases: Sequence[Case]) -> Iterator[Token]:
    records = [
        case.record if case.record.source else Record(
            item=case.record.item, system=case.record.system, output=case.record.output, source=_NO_SOURCE
        )
        for case in cases
    ]  # fmt: skip
    block = metrist.score(records, [LIKELIHOOD], tokens=True).scores[LIKELIHOOD]
    for number, readings in block.tokens.items():
        text, at = records[number].output, 0
        for piece, value in zip(readings[0]["pieces"], readings[0]["logprobs"], strict=True):
            plain = piece.replace("▁", " ").strip()
            start = text.find(plain, at) if plain else -1
            # What the tokenizer changed cannot be found; such a token is passed over.
            if 0 <= start <= at + 12:
                yield float(value), number, start, start + len(plain)
                at = start + len(plain)


def mark_unlikely(cases: Sequence[Case], tokens: Sequence[Token], share: float) -> list[Marks]:
    """Mark the least likely tokens of all outputs until a share of all characters is marked."""
    marks = [np.zeros(len(case.gold), bool) for case in cases]
    left = share * sum(map(len, marks))
    for _, number, start, end in sorted(tokens):
        if left <= 0:
            break
        marks[number][start:end] = True
        left -= end - start
    return marks


# ---- Agreement


def count(cases: Sequence[Case], marks: Sequence[Marks]) -> NDArray[np.float64]:
    """Return hits, marked and gold characters of each output."""
    return np.array(
        [
            ((own & case.gold).sum(), (own & ~case.ignored).sum(), case.gold.sum())
            for case, own in zip(cases, marks, strict=True)
        ],
        float,
    )


def f1(counts: NDArray[np.float64]) -> float:
    hits, marked, gold = counts.sum(0)
    return float(2 * hits / (marked + gold)) if marked + gold else 0.0


def resample(size: int, figure: Callable[[NDArray[np.intp]], float]) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    values = [figure(rng.integers(0, size, size)) for _ in range(_RESAMPLES)]
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


def report(title: str, cases: Sequence[Case], candidates: dict[str, list[Marks]], first: str) -> None:
    """Print the F1 of each candidate, and how far the first one is above it."""
    table = {name: count(cases, marks) for name, marks in candidates.items()}
    chosen = table[first]
    marked, share = sum(bool(case.gold.any()) for case in cases), np.mean(np.concatenate([case.gold for case in cases]))
    print(f"{title}: {len(cases)} outputs, {marked} with errors, {share:.3f} of the text")
    for name, counts in table.items():
        low, high = resample(len(cases), lambda at, own=counts: f1(own[at]))
        hits, own, gold = counts.sum(0)
        line = f"  {name:28} F1 {f1(counts):.3f} [{low:.3f}, {high:.3f}]"
        line += f", precision {hits / max(own, 1):.3f}, recall {hits / gold:.3f}"
        if name != first:
            low, high = resample(len(cases), lambda at, own=counts: f1(chosen[at]) - f1(own[at]))
            line += f"; {first} is above by {f1(chosen) - f1(counts):.3f} [{low:.3f}, {high:.3f}]"
        print(line, flush=True)
    ignored = sum(int(case.ignored.sum()) for case in cases)
    if ignored:
        hits = sum(int((own & case.ignored).sum()) for case, own in zip(cases, candidates[first], strict=True))
        print(f"  of the characters that are true but unsupported, {first} marks {hits / ignored:.3f}")
    right = [not own.any() for case, own in zip(cases, candidates[first], strict=True) if not case.gold.any()]
    found = [own.any() for case, own in zip(cases, candidates[first], strict=True) if case.gold.any()]
    print(
        f"  no mark in {np.mean(right):.3f} of the outputs without errors, some in {np.mean(found):.3f} of the others"
    )


def judge_spans(
    sets: Sequence[str], metrics: Sequence[str], cache: Path | None, every: int, *, sentences: bool
) -> None:
    groups = {name: read_cases(name) for name in sets}
    tokens = read_likelihoods([case for group in groups.values() for case in group], cache)
    kept = [at for at, _ in enumerate(case for group in groups.values() for case in group) if at % every == 0]
    places = {number: at for at, number in enumerate(kept)}
    tokens = [(value, places[number], start, end) for value, number, start, end in tokens if number in places]
    sizes = np.cumsum([0, *map(len, groups.values())]).tolist()
    groups = {
        name: [group[at - first] for at in kept if first <= at < first + len(group)]
        for (name, group), first in zip(groups.items(), sizes, strict=False)
    }
    cases = [case for group in groups.values() for case in group]
    marks = mark_errors(cases, [*metrics, *((SENTENCES,) if sentences and SENTENCES not in metrics else ())])
    name = " + ".join(metrics)
    joined = [np.logical_or.reduce(own) for own in zip(*(marks[metric] for metric in metrics), strict=True)]
    bounds = np.cumsum([0, *map(len, groups.values())]).tolist()
    parts = [(title, slice(*pair)) for title, pair in zip(groups, pairwise(bounds), strict=True)]
    for title, part in [*parts, *([("all", slice(0, len(cases)))] if len(parts) > 1 else [])]:
        own = cases[part]
        share = float(np.mean(np.concatenate(joined[part])))
        numbers = {number: at for at, number in enumerate(range(*part.indices(len(cases))))}
        near = [(value, numbers[number], start, end) for value, number, start, end in tokens if number in numbers]
        candidates = {name: joined[part]}
        if len(metrics) > 1 or sentences:
            candidates |= {f"{metric} alone": own_marks[part] for metric, own_marks in marks.items() if metric != name}
        candidates["all text"] = [np.ones(len(case.gold), bool) for case in own]
        candidates["random words"] = mark_random(own, share, 0)
        candidates["least likely tokens"] = mark_unlikely(own, near, share)
        report(f"{title}, {share:.3f} marked", own, candidates, name)
        draws = [f1(count(own, mark_random(own, share, seed))) for seed in range(_DRAWS)]
        print(f"  random words, {_DRAWS} draws: mean F1 {np.mean(draws):.3f}, highest {max(draws):.3f}", flush=True)


# ---- SummEval


def judge_summaries(metric: str, every: int, *, all_references: bool) -> None:
    data = rows("summeval")
    items = list(dict.fromkeys(row["item"] for row in data))[::every]
    data = [row for row in data if row["item"] in items]

    def make(row: Row, output: str) -> Record:
        return Record(item=row["item"], system=row["system"], output=output, source=row["source"], language="en")

    records = [make(row, row["output"]) for row in data]
    metrist.score(records[:16], [metric])  # Load the model before the clock runs.
    begin = time.perf_counter()
    scores = metrist.score(records, [metric]).scores[metric].values
    seconds = time.perf_counter() - begin
    print(f"{len(records)} outputs in {seconds:.0f} s: {len(records) / seconds:.2f}/s")
    human = [mean_rating(row, "consistency") for row in data]
    by_item = correlate_by_item(data, scores.tolist(), "consistency")
    print(f"consistency: Spearman by item {by_item:.3f}, over all {spearman(human, scores.tolist()):.3f}")
    seen, gold = set(), []
    for row in data:
        if row["item"] not in seen:
            seen.add(row["item"])
            gold.append((row, row["references"]))
    # The first one is the article's own, the others were written by workers.
    for title, most in (("own references", 1), ("all references", len(gold[0][1]))):
        if most == 1 or all_references:
            texts = [make(row, text) for row, texts in gold for text in texts[:most]]
            values = metrist.score(texts, [metric]).scores[metric].values
            zero, small = np.mean(values == 0), np.mean(values > -2)
            print(f"{title}: {len(values)}, 0 for {zero:.3f}, above -2 for {small:.3f}, mean {np.mean(values):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("spans", "grammar", "summaries"))
    parser.add_argument("metrics", nargs="*", help="by default `errors`, which is what `metrist explain` shows")
    parser.add_argument("--every", type=int, default=1, help="take one of so many outputs, or items of SummEval")
    parser.add_argument("--sentences", action="store_true", help="put the marks of `consistency` alone beside them")
    parser.add_argument("--all-references", action="store_true", help="score all references of SummEval, not one each")
    parser.add_argument("--likelihoods", type=Path, help="a file that keeps the likelihoods of tokens")
    arguments = parser.parse_args()
    if arguments.what == "spans":
        judge_spans(
            XSUM, arguments.metrics or ["errors"], arguments.likelihoods, arguments.every, sentences=arguments.sentences
        )
    elif arguments.what == "grammar":
        judge_spans(
            ("realec-dev",), arguments.metrics or ["errors"], arguments.likelihoods, arguments.every, sentences=False
        )
    else:
        judge_summaries((arguments.metrics or ["errors"])[0], arguments.every, all_references=arguments.all_references)


if __name__ == "__main__":
    main()
