"""Fit how the head `errors` of an exported text encoder is used: errors.json in its folder.

    python calibrate_errors.py MODEL --news cnn_validation.json [--write]

Outputs with errors that people marked (bump, summedits, wice-tokens, qa-feedback) on sources that no training saw are
read as `consistency` reads them. Fitted are

- the scale a and the shift b of the logits of words: z becomes a z + b, with the least cross-entropy, all sets weighing
  the same;
- the thresholds of words in unsupported and in supported sentences, and the support above which a sentence has no
  marks: the highest mean over the sets of the F1 of characters, among those with which at least --clean of the
  highlights of held-out articles have no mark. --limit is the support below which a sentence is unsupported: `errors`
  has a lower one than `consistency`, since an unsupported sentence without marked words is marked whole.

Support itself must be calibrated before (`calibrate_support.py`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from agreement import rows as read_rows
from calibrate_support import logit
from english_support import _FACTUAL, JudgedTexts, is_dev
from fluency_agreement import area
from numpy.typing import NDArray
from scipy.optimize import minimize

from metrist.metrics.trained.support import ErrorSettings, Support, SupportReader, Word, merge_words
from metrist.models.loading import load_text_encoder

SETS = ("bump", "summedits", "wice-tokens", "qa-feedback")
GOLD = "highlights"
#: The metric's own threshold of support: with it, sentences are read beside further windows.
_SUPPORTED = 0.5
_THRESHOLDS = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7)
_SURE = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_SENTENCES = (0.7, 0.8, 0.9, 0.95, 1.0)


class Case(NamedTuple):
    """An output with the characters that people marked, and those about which nothing is known."""

    name: str
    source: str
    output: str
    gold: NDArray[np.bool_]
    unsure: NDArray[np.bool_]


def read_cases(news: Path, highlights: int, judged: JudgedTexts) -> list[Case]:
    cases = []
    for name in SETS:
        for row in read_rows(name):
            source, output = row["source"], row["output"]
            errors = row.get("errors", ())
            consistent = (row["ratings"].get("consistent") or [1])[0] >= 1
            exact = name == "qa-feedback" or consistent or (errors and (name != "summedits" or _is_sure(errors)))
            if not is_dev(source) or not exact or judged.find(source) or judged.find(output):
                continue
            gold, unsure = np.zeros(len(output), bool), np.zeros(len(output), bool)
            for error in errors if not (name == "summedits" and consistent) else ():
                factual = name != "qa-feedback" or error["category"] in _FACTUAL
                if error.get("start") is not None:
                    (gold if factual else unsure)[error["start"] : error["end"]] = True
            cases.append(Case(name, source, output, gold, unsure & ~gold))
    articles = [row for row in json.loads(news.read_text(encoding="utf-8")) if is_dev(row["input"])]
    for row in random.Random(0).sample(articles, min(2 * highlights, len(articles))):
        output = " ".join(f"{line.strip(' .')}." for line in row["output"].split("\n") if line.strip())
        if highlights and not judged.find(row["input"]):
            nothing = np.zeros(len(output), bool)
            cases.append(Case(GOLD, row["input"], output, nothing, nothing))
            highlights -= 1
    return cases


def _is_sure(errors: list[dict[str, object]]) -> bool:
    return all(error.get("sure") for error in errors)


def label_words(case: Case, words: list[Word]) -> tuple[list[float], list[bool]]:
    """Return the logits of the words that people could judge, and whether they are errors."""
    known = [word for word in words if not case.unsure[word.start : word.end].any()]
    values = logit(np.clip(np.array([word.probability for word in known]), 1e-6, 1 - 1e-6))
    return values.tolist(), [bool(case.gold[word.start : word.end].any()) for word in known]


def mark(case: Case, support: Support, settings: ErrorSettings, limit: float) -> NDArray[np.bool_]:
    """Return the characters that `consistency(threshold=limit)` marks; the words of `support` are uncalibrated."""
    marks = np.zeros(len(case.output), bool)
    for sentence, (start, end) in enumerate(support.spans):
        probability = support.probabilities[sentence]
        supported = probability >= limit
        threshold = settings.sure if supported else settings.threshold
        # The threshold of a calibrated probability as one of an uncalibrated one.
        raw = 1 / (1 + np.exp(-(logit(threshold) - settings.shift) / settings.scale))
        found = [] if probability > settings.sentence else merge_words(case.output, support.words[sentence], raw)
        found = [word for word in found if any(map(str.isalnum, case.output[word.start : word.end]))]
        for word in found:
            marks[word.start : word.end] = True
        if not supported and not found:
            marks[start:end] = True
    return marks


def judge(cases: list[Case], supports: list[Support], settings: ErrorSettings, limit: float) -> dict[str, float]:
    """Return the F1 of characters of each set, and the share of highlights without marks."""
    counts: dict[str, NDArray[np.float64]] = defaultdict(lambda: np.zeros(3))
    clean = []
    for case, support in zip(cases, supports, strict=True):
        marks = mark(case, support, settings, limit)
        if case.name == GOLD:
            clean.append(not marks.any())
            continue
        hits, marked = (marks & case.gold).sum(), (marks & ~case.unsure).sum()
        counts[case.name] += (hits, marked, case.gold.sum())
    figures = {name: 2 * hits / (marked + gold) for name, (hits, marked, gold) in counts.items()}
    return {**figures, "mean": float(np.mean(list(figures.values()))), GOLD: float(np.mean(clean)) if clean else np.nan}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--news", type=Path, required=True)
    parser.add_argument("--highlights", type=int, default=150)
    parser.add_argument("--clean", type=float, default=0.6)
    parser.add_argument("--limit", type=float, default=0.05, help="threshold of `consistency` within `errors`")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    cases = read_cases(arguments.news, arguments.highlights, JudgedTexts())
    (arguments.model / "errors.json").unlink(missing_ok=True)
    reader = SupportReader(load_text_encoder(str(arguments.model)), threshold=_SUPPORTED)
    results = reader.read([(case.source, case.output) for case in cases])
    pairs = [(case, result) for case, result in zip(cases, results, strict=True) if isinstance(result, Support)]
    cases, supports = [case for case, _ in pairs], [support for _, support in pairs]
    values: list[float] = []
    labels: list[bool] = []
    weights: list[float] = []
    for name in SETS:
        words = [label_words(case, own) for case, result in pairs if case.name == name for own in result.words]
        own_values = [value for part, _ in words for value in part]
        own_labels = [label for _, part in words for label in part]
        outputs = sum(case.name == name for case in cases)
        print(f"{name}: {outputs} outputs, {len(own_values)} words, area {area(own_values, own_labels):.3f}")
        values, labels = values + own_values, labels + own_labels
        weights += [1 / len(own_values)] * len(own_values)
    signs, logits, shares = 2 * np.array(labels, float) - 1, np.array(values), np.array(weights)

    def cross_entropy(line: NDArray[np.float64]) -> float:
        return float((shares * np.logaddexp(0, -signs * (line[0] * logits + line[1]))).sum())

    scale, shift = map(float, minimize(cross_entropy, [1.0, 0.0]).x)
    print(f"scale {scale:.4f}, shift {shift:.4f}")
    best, chosen = {"mean": -1.0}, ErrorSettings()
    for threshold, sure, sentence in itertools.product(_THRESHOLDS, _SURE, _SENTENCES):
        if sure < threshold:
            continue
        settings = ErrorSettings(scale=scale, shift=shift, threshold=threshold, sure=sure, sentence=sentence)
        figures = judge(cases, supports, settings, arguments.limit)
        if figures["mean"] > best["mean"] and not figures[GOLD] < arguments.clean:
            best, chosen = figures, settings
    print(chosen, {name: round(figure, 3) for name, figure in best.items()})
    whole = ErrorSettings(scale=scale, shift=shift, threshold=0.999999, sure=0.9999999)
    figures = judge(cases, supports, whole, _SUPPORTED)
    print("whole sentences:", {name: round(figure, 3) for name, figure in figures.items()})
    if arguments.write:
        facts = {
            "metrist_errors": 1, "scale": round(scale, 4), "shift": round(shift, 4), "threshold": chosen.threshold,
            "sure": chosen.sure, "sentence": chosen.sentence,
        }  # fmt: skip
        (arguments.model / "errors.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
