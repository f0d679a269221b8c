"""Fit how the heads of an English encoder are used, on rows that no training saw, and write it into its folder.

    python calibrate.py MODEL WORK --sentences 12 [--window 512] [--most 150]

WORK has support.jsonl.xz, pairs.jsonl.gz and fluency.jsonl.xz; their rows of dev are read, --most of a set. Fitted are

- support.json: scale and shift of the logits of sentences with the least cross-entropy, all families of human labels
  weighing the same, and the share of supported ones among sentences that the source has word for word; --sentences and
  --window say what the rows of the training had;
- the heads fluency and tags: scale and shift, which go into their weights;
- errors.json, if there is that head: scale and shift of the logits of words, and the thresholds with the highest mean
  F1 of characters over the sets whose errors people marked, among those with which enough highlights have no mark;
- reward.json: how answers are laid out, their criteria, and where the rewards lie.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy.optimize import minimize
from sets import Row, read_arguments, read_lines

from metrist import criteria
from metrist.metrics.trained.fluency import ERROR_HEAD, HEAD, FluencyReader
from metrist.metrics.trained.sentence_metric import merge_words
from metrist.metrics.trained.support import ERROR_HEAD as SUPPORT_ERRORS
from metrist.metrics.trained.support import ErrorSettings, Support, SupportReader, SupportSettings
from metrist.models.loading import load_text_encoder
from metrist.models.numpy_inference.storage import WEIGHTS
from metrist.models.reward_layout import (
    RewardInput,
    RewardLayout,
    RewardSettings,
    build_rows,
    read_frame,
    token_encoder,
)

Floats = NDArray[np.float64]
#: Sets that share sources count as one family.
_FAMILIES = {"wice-tokens": "wice", "wice-claims": "wice"}
_FAMILIES |= dict.fromkeys(("begin", "faithdial-audit", "q2-wow", "dialfact-small", "alexa"), "dialogue")
#: Sets whose errors people marked, and the rows of good sentences.
_MARKED, _GOOD = ("bump", "summedits", "wice-tokens", "qa-feedback"), "news plain"
#: Stands for any probability of a copied sentence; fewer copied sentences tell nothing.
_COPIED, _LEAST_COPIES = 0.75, 20
#: The support below which `errors` takes a sentence for unsupported; the share of good sentences without marks.
_LIMIT, _CLEAN = 0.05, 0.6
_THRESHOLDS, _SURE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7), (0.2, 0.4, 0.6, 0.8, 0.9, 0.95)
_SENTENCES = (0.7, 0.8, 0.9, 1.0)


def read_dev(path: Path, most: int) -> dict[str, list[Row]]:
    """Return the rows of dev by set, at most so many of each."""
    sets: dict[str, list[Row]] = defaultdict(list)
    for row in read_lines(path):
        name = row.get("set") or row.get("task") or ""
        if row["split"] == "dev" and len(sets[name]) < most:
            sets[name].append(row)
    return sets


def logit(probabilities: Sequence[float]) -> Floats:
    clipped = np.clip(np.array(probabilities, np.float64), 1e-9, 1 - 1e-9)
    return np.log(clipped / (1 - clipped))


def fit_line(values: Floats, labels: Floats, groups: Sequence[str]) -> tuple[float, float]:
    """Return scale, above 0, and shift of the least cross-entropy; every group weighs the same."""
    names = np.array(groups)
    weights = np.array([1 / (names == name).sum() for name in names])

    def loss(line: Floats) -> float:
        moved = np.exp(line[0]) * values + line[1]
        return float((weights * (np.logaddexp(0, moved) - labels * moved)).sum() / weights.sum())

    power, shift = minimize(loss, np.zeros(2), method="Nelder-Mead").x
    return max(0.01, round(float(np.exp(power)), 4)), round(float(shift), 4)


def calibrate_support(model: Path, rows: dict[str, list[Row]], layout: dict[str, int]) -> None:
    settings = replace(SupportSettings.read(model), **layout)
    raw = replace(settings, scale=1.0, shift=0.0, copied=_COPIED)
    reader = SupportReader(load_text_encoder(str(model)), threshold=0.5, override=raw)
    human = [(name, row) for name, own in rows.items() if not name.startswith(("made", "news")) for row in own]
    results = reader.read([(row["passage"], row["sentences"][0][0]) for _, row in human])
    values, labels, groups, copies = [], [], [], []
    for (name, row), result in zip(human, results, strict=True):
        if isinstance(result, Support):
            probability, label = float(result.probabilities.min()), row["sentences"][0][1]
            if probability == _COPIED:
                copies.append(label)
                continue
            values.append(probability)
            labels.append(label)
            groups.append(_FAMILIES.get(name, name))
    scale, shift = fit_line(logit(values), np.array(labels), groups)
    copied = round((sum(copies) + 1) / (len(copies) + 2), 4) if len(copies) >= _LEAST_COPIES else None
    print(f"support: {len(values)} sentences, scale {scale}, shift {shift}, copied {copied} of {len(copies)}")
    replace(settings, scale=scale, shift=shift, copied=copied).write(model)


def calibrate_fluency(model: Path, rows: dict[str, list[Row]]) -> None:
    """Multiply both heads by their scales and add the shifts, so that a sigmoid of what they say is calibrated."""
    from safetensors.numpy import load_file, save_file

    reader = FluencyReader(load_text_encoder(str(model)))
    rated = [(name, row) for name, own in rows.items() for row in own if "label" in row]
    tagged = [(name.split("-")[0], row) for name, own in rows.items() for row in own if row.get("spans") is not None]
    lines = {}
    for head, own in ((HEAD, rated), (ERROR_HEAD, tagged)):
        values, labels, groups = [], [], []
        for (name, row), sentences in zip(own, reader.read([row["text"] for _, row in own]), strict=True):
            if head == HEAD and sentences:
                found = [(float(np.mean([sentence.value for sentence in sentences])), row["label"])]
            else:
                words = [word for sentence in sentences for word in sentence.words]
                found = [
                    (w.probability, any(w.start < end and start < w.end for start, end in row.get("spans") or ()))
                    for w in words
                ]
            values += [value for value, _ in found]
            labels += [float(label) for _, label in found]
            groups += ["made and good" if name.startswith(("made", "good")) else name] * len(found)
        lines[head] = fit_line(logit(values), np.array(labels), groups)
    path = model / WEIGHTS
    arrays = load_file(str(path))
    for head, (scale, shift) in lines.items():
        weight, bias = f"heads.{head}.weight", f"heads.{head}.bias"
        arrays[weight] = (arrays[weight] * scale).astype(np.float32)
        arrays[bias] = (arrays[bias] * scale + shift).astype(np.float32)
    save_file(arrays, str(path))
    path.chmod(0o644)
    print(f"fluency and tags, scale and shift: {lines}")


# ---- Errors


def calibrate_errors(model: Path, rows: dict[str, list[Row]]) -> None:
    (model / "errors.json").unlink(missing_ok=True)
    reader = SupportReader(load_text_encoder(str(model)), threshold=0.5)
    cases = [
        (name, row) for name in (*_MARKED, _GOOD) for row in rows.get(name, ()) if row["sentences"][0][3] is not None
    ]
    results = reader.read([(row["passage"], row["sentences"][0][0]) for _, row in cases])
    read = [
        (name, row["sentences"][0], result)
        for (name, row), result in zip(cases, results, strict=True)
        if isinstance(result, Support)
    ]
    values, labels, groups = [], [], []
    for name, (_, _, _, errors, unsure), support in read:
        for word in (word for words in support.words for word in words):
            if name != _GOOD and not _touches(word, unsure):
                values.append(word.probability)
                labels.append(float(_touches(word, errors)))
                groups.append(name)
    scale, shift = fit_line(logit(values), np.array(labels), groups)
    best, chosen = -1.0, ErrorSettings(scale=scale, shift=shift)
    for threshold, sure, sentence in itertools.product(_THRESHOLDS, _SURE, _SENTENCES):
        if sure < threshold:
            continue
        settings = ErrorSettings(scale=scale, shift=shift, threshold=threshold, sure=sure, sentence=sentence)
        mean, clean = judge_marks(read, settings)
        if mean > best and clean >= _CLEAN:
            best, chosen = mean, settings
    facts = {name: getattr(chosen, name) for name in ("scale", "shift", "threshold", "sure", "sentence")}
    (model / "errors.json").write_text(json.dumps({"metrist_errors": 1, **facts}, indent=2) + "\n", encoding="utf-8")
    print(f"errors: {len(values)} words, mean F1 {best:.3f}, {facts}")


def _touches(word: Any, spans: Sequence[Sequence[int]]) -> bool:
    return any(word.start < end and start < word.end for start, end in spans)


def judge_marks(read: Sequence[tuple[str, Any, Support]], settings: ErrorSettings) -> tuple[float, float]:
    """Return the mean F1 of characters over the sets, and the share of good sentences without marks."""
    counts: dict[str, Floats] = defaultdict(lambda: np.zeros(3))
    clean = []
    for name, (text, _, _, errors, unsure), support in read:
        marks, gold, unknown = (np.zeros(len(text), bool) for _ in range(3))
        for array, spans in ((gold, errors), (unknown, unsure)):
            for start, end in spans:
                array[start:end] = True
        for (start, end), probability, words in zip(support.spans, support.probabilities, support.words, strict=True):
            supported = probability >= _LIMIT
            # Thresholds of calibrated probabilities as those of uncalibrated ones.
            lines = (logit([settings.threshold, settings.sure]) - settings.shift) / (settings.scale or 1e-6)
            threshold, sure = 1 / (1 + np.exp(-lines))
            found = [] if probability > settings.sentence else merge_words(text, words, threshold)
            found = found if not supported or any(word.probability > sure for word in found) else []
            for word in found:
                marks[word.start : word.end] = True
            if not supported and not found:
                marks[start:end] = True
        if name == _GOOD:
            clean.append(not marks.any())
        else:
            counts[name] += ((marks & gold).sum(), (marks & ~unknown).sum(), gold.sum())
    figures = [2 * hits / max(1.0, marked + gold) for hits, marked, gold in counts.values()]
    return float(np.mean(figures)) if figures else 0.0, float(np.mean(clean)) if clean else 1.0


# ---- Preference


def write_reward(model: Path, pairs: Path, length: int, most: int) -> None:
    """Write how answers are laid out; centre and spread are those of the rewards of answers of dev."""
    encoder = load_text_encoder(str(model))
    tokenizer = encoder.tokenizer
    layout, frame = RewardLayout(max_length=length, keep="both"), read_frame(tokenizer)
    rows = [row for own in read_dev(pairs, most).values() for row in own]
    names = sorted({row["task"] for row in rows if criteria.known(row["task"])})
    inputs = [RewardInput(row["instruction"], tuple(map(tuple, row[side]))) for row in rows for side in ("good", "bad")]
    laid_out = build_rows(token_encoder(tokenizer), frame, layout, inputs)
    spans = [[(start, len(ids))] for ids, start in zip(laid_out.ids, laid_out.starts, strict=True)]
    outputs = encoder.score_spans("preference", [(ids, len(ids)) for ids in laid_out.ids], spans)
    rewards = np.array([output[0, 0] for output in outputs])
    settings = RewardSettings(
        pooling="answer", layout=layout, frame=frame,
        criteria={name: criteria.find(name).instruction for name in names},
        fields={row["task"]: tuple(label for label, _ in row["good"]) for row in rows if row["task"] in names},
        centre=float(rewards.mean()), spread=float(rewards.std()),
    )  # fmt: skip
    settings.write(model)
    print(f"reward.json: {len(names)} criteria, centre {rewards.mean():.3f}, spread {rewards.std():.3f}")


def main() -> None:
    arguments = read_arguments(__doc__, "model", "work", sentences=12, window=512, most=150)
    support = read_dev(arguments.work / "support.jsonl.xz", arguments.most)
    layout = {"sentences": arguments.sentences, "window": arguments.window}
    calibrate_support(arguments.model, support, layout)
    calibrate_fluency(arguments.model, read_dev(arguments.work / "fluency.jsonl.xz", arguments.most))
    if SUPPORT_ERRORS in load_text_encoder(str(arguments.model)).heads:
        calibrate_errors(arguments.model, support)
    write_reward(arguments.model, arguments.work / "pairs.jsonl.gz", arguments.window, arguments.most)


if __name__ == "__main__":
    main()
