"""Measure the fluency heads of a model, calibrate them, and judge them.

    python fluency_agreement.py dev MODEL DATA.json.xz         agreement on development sets, calibration, thresholds
    python fluency_agreement.py fold MODEL A B C D             put scale and shift of both heads into the weights
    python fluency_agreement.py probabilities SMOLLM2 LOG_PROBABILITIES.json   the baseline, with torch
    python fluency_agreement.py judge MODEL LOG_PROBABILITIES.json ...   once, at the end
    python fluency_agreement.py others MODEL                   further sets that nothing was trained on

MODEL is a folder in metrist's own format or `metrist:NAME`; DATA what fluency_data.py wrote; LOG_PROBABILITIES has
{"scores": {text: [sum of the log-probabilities, number of tokens]}} of a language model for lau-acceptability.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from agreement import ranks, rows, spearman
from numpy.typing import NDArray

from metrist.metrics.trained.fluency import ERROR_HEAD, HEAD, FluencyReader, Sentence, merge_words
from metrist.models.loading import load_text_encoder
from metrist.models.numpy_inference.storage import WEIGHTS

Numbers = NDArray[np.float64]


def logit(probability: Numbers) -> Numbers:
    clipped = np.clip(probability, 1e-12, 1 - 1e-12)
    result: Numbers = np.log(clipped / (1 - clipped))
    return result


def sigmoid(value: Numbers) -> Numbers:
    result: Numbers = 1 / (1 + np.exp(-value))
    return result


def area(values: Sequence[float], labels: Sequence[float]) -> float:
    """Return the area under the ROC curve; labels above .5 are positive."""
    positive = np.asarray(labels) > 0.5
    count = int(positive.sum())
    if not 0 < count < len(positive):
        return float("nan")
    return float((ranks(values)[positive].sum() - count * (count + 1) / 2) / (count * (len(positive) - count)))


def read_values(reader: FluencyReader, texts: Sequence[str]) -> list[list[Sentence]]:
    """Return the sentences of each text, reading equal texts once."""
    distinct = list(dict.fromkeys(texts))
    results: dict[str, list[Sentence]] = {}
    for start in range(0, len(distinct), 1000):
        chunk = distinct[start : start + 1000]
        results |= zip(chunk, reader.read(chunk), strict=True)
    return [results[text] for text in texts]


def mean_value(sentences: Sequence[Sentence]) -> float:
    return float(np.mean([sentence.value for sentence in sentences])) if sentences else 0.5


def fit_line(values: Numbers, labels: Numbers, weights: Numbers) -> tuple[float, float]:
    """Return scale and shift of a logistic regression on one variable, by Newton's method."""
    line = np.array([1.0, 0.0])
    design = np.column_stack([values, np.ones_like(values)])
    for _ in range(50):
        expected = sigmoid(design @ line)
        gradient = design.T @ (weights * (labels - expected))
        hessian = (design * (weights * expected * (1 - expected))[:, None]).T @ design
        step = np.linalg.solve(hessian + 1e-9 * np.eye(2), gradient)
        line += step
        if np.abs(step).max() < 1e-9:
            break
    return float(line[0]), float(line[1])


def calibration_error(probabilities: Numbers, labels: Numbers, bins: int = 10) -> float:
    """Return the expected calibration error over bins of equal size."""
    order = np.argsort(probabilities)
    parts = [part for part in np.array_split(order, bins) if len(part)]
    return float(sum(len(p) * abs(probabilities[p].mean() - labels[p].mean()) for p in parts) / len(order))


def group_name(name: str) -> str:
    return "made and good" if name.startswith(("made", "good")) else name


def limit_sets(data: Sequence[Sequence[Any]], most: int = 600) -> list[Sequence[Any]]:
    """Return at most so many rows of each set; they are in random order."""
    counts: dict[str, int] = defaultdict(int)
    chosen = []
    for row in data:
        counts[row[-1]] += 1
        if counts[row[-1]] <= most:
            chosen.append(row)
    return chosen


def report_development(model: str, data: Path) -> None:
    with lzma.open(data, "rt", encoding="utf-8") as file:
        dev = {kind: limit_sets(members) for kind, members in json.load(file)["dev"].items()}
    reader = FluencyReader(load_text_encoder(model))
    report_texts(reader, dev["texts"])
    report_pairs(reader, dev["pairs"])
    report_tags(reader, dev["tags"])


def report_texts(reader: FluencyReader, data: Sequence[Sequence[Any]]) -> None:
    sentences = read_values(reader, [row[0] for row in data])
    groups: dict[str, list[tuple[list[Sentence], float, str]]] = defaultdict(list)
    for row, own in zip(data, sentences, strict=True):
        groups[group_name(row[3])].append((own, row[1], row[0]))
    good: dict[str, list[float]] = defaultdict(list)
    for row, own in zip(data, sentences, strict=True):
        if row[3].startswith("good"):
            good[row[3]].append(mean_value(own))
    for name, values in sorted(good.items()):
        print(f"{name:20} n {len(values):4} mean {np.mean(values):.3f}, below .5 {np.mean(np.array(values) < 0.5):.3f}")
    for name, members in sorted(groups.items()):
        human = [label for _, label, _ in members]
        line = [f"{name:16} n {len(members):5}"]
        variants: dict[str, Callable[[Sequence[Sentence]], float]] = {
            "mean": mean_value,
            "minimum": lambda own: min((sentence.value for sentence in own), default=0.5),
            "logit": lambda own: float(logit(np.array([sentence.value for sentence in own] or [0.5])).mean()),
        }
        for variant, function in variants.items():
            values = [function(own) for own, _, _ in members]
            line.append(f"{variant} {spearman(human, values):.3f}")
        lengths = [float(len(text)) for _, _, text in members]
        line.append(
            f"length {spearman(human, lengths):.3f} area {area([mean_value(o) for o, _, _ in members], human):.3f}"
        )
        print("texts", *line)
    fitted = ("cola", "realec", "made and good", "gmeg", "mlqe", "bio-mqm")
    logits = logit(np.array([mean_value(own) for name in fitted for own, _, _ in groups[name]]))
    labels = np.array([label for name in fitted for _, label, _ in groups[name]])
    weights = np.array([1 / len(groups[name]) for name in fitted for _ in groups[name]])
    scale, shift = fit_line(logits, labels, weights)
    print(f"sentence head: scale {scale:.4f} shift {shift:.4f}")
    for name, members in sorted(groups.items()):
        before = np.array([mean_value(own) for own, _, _ in members])
        rated = np.array([label for _, label, _ in members])
        after = sigmoid(scale * logit(before) + shift)
        errors = f"{calibration_error(before, rated):.3f} -> {calibration_error(after, rated):.3f}"
        print(f"  {name:16} calibration error {errors}, mean {after.mean():.3f}, people {rated.mean():.3f}")


def report_pairs(reader: FluencyReader, data: Sequence[Sequence[Any]]) -> None:
    better = read_values(reader, [row[0] for row in data])
    worse = read_values(reader, [row[1] for row in data])
    groups: dict[str, list[bool]] = defaultdict(list)
    for row, first, second in zip(data, better, worse, strict=True):
        groups[group_name(row[2])].append(mean_value(first) > mean_value(second))
    print("pairs", {name: (round(float(np.mean(right)), 3), len(right)) for name, right in sorted(groups.items())})


def report_tags(reader: FluencyReader, data: Sequence[Sequence[Any]]) -> None:
    """Words: whether a word overlaps a marked span."""
    sentences = read_values(reader, [row[0] for row in data])
    groups: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for (_, spans, name), own in zip(data, sentences, strict=True):
        kind = name.split("-")[0] if name.startswith(("made", "good")) else name
        for sentence in own:
            for word in sentence.words:
                fault = any(word.start < end and start < word.end for start, end in spans)
                groups[kind].append((word.probability, fault))
                if kind == "made":
                    groups[name].append((word.probability, fault))
    columns = {name: np.array(members) for name, members in groups.items()}
    chosen = np.concatenate([columns[name] for name in ("realec", "made", "good")])
    weights = np.concatenate(
        [np.full(len(columns[name]), 1 / len(columns[name])) for name in ("realec", "made", "good")]
    )
    scale, shift = fit_line(logit(chosen[:, 0]), chosen[:, 1], weights)
    print(f"token head: scale {scale:.4f} shift {shift:.4f} (words of realec, made and good, a third each)")
    for threshold in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
        line = []
        for name in ("realec", "made", "bio-mqm", "good"):
            marked = sigmoid(scale * logit(columns[name][:, 0]) + shift) > threshold
            wrong = columns[name][:, 1] > 0.5
            hits = int((marked & wrong).sum())
            precision, recall = hits / max(1, int(marked.sum())), hits / max(1, int(wrong.sum()))
            score = 1.25 * precision * recall / max(1e-9, 0.25 * precision + recall)
            alarms = float(marked[~wrong].mean())
            line.append(f"{name} P {precision:.2f} R {recall:.2f} F.5 {score:.3f} alarms {alarms:.4f}")
        print(f"words above {threshold}:", " | ".join(line))
    for name in sorted(columns):
        if name.startswith("made-"):
            marked = sigmoid(scale * logit(columns[name][:, 0]) + shift) > 0.5
            wrong = columns[name][:, 1] > 0.5
            print(f"  {name:28} recall {marked[wrong].mean():.2f} of {int(wrong.sum())} words")
    report_spans(data, sentences, scale, shift)


def report_spans(
    data: Sequence[Sequence[Any]], sentences: Sequence[list[Sentence]], scale: float, shift: float
) -> None:
    """Characters: overlap of marked and predicted spans on realec, beside marking everything."""
    for threshold in (0.3, 0.5, 0.7):
        hits = marked = wrong = everything = 0
        for (text, spans, name), own in zip(data, sentences, strict=True):
            if name != "realec":
                continue
            predicted = np.zeros(len(text), bool)
            for sentence in own:
                words = [
                    word._replace(probability=float(sigmoid(scale * logit(np.array(word.probability)) + shift)))
                    for word in sentence.words
                ]
                for word in merge_words(text, words, threshold):
                    predicted[word.start : word.end] = True
            actual = np.zeros(len(text), bool)
            for start, end in spans:
                actual[start:end] = True
            hits += int((predicted & actual).sum())
            marked += int(predicted.sum())
            wrong += int(actual.sum())
            everything += len(text)
        f1 = 2 * hits / max(1, marked + wrong)
        print(f"characters of realec above {threshold}: F1 {f1:.3f}; all text {2 * wrong / (everything + wrong):.3f}")


def fold(model: Path, sentence: tuple[float, float], token: tuple[float, float]) -> None:
    """Multiply the heads by their scales and add the shifts, so that a sigmoid of what they say is calibrated."""
    from safetensors.numpy import load_file, save_file

    path = model / WEIGHTS
    arrays = load_file(str(path))
    for head, (scale, shift) in ((HEAD, sentence), (ERROR_HEAD, token)):
        weight, bias = f"heads.{head}.weight", f"heads.{head}.bias"
        arrays[weight] = (arrays[weight] * scale).astype(np.float32)
        arrays[bias] = (arrays[bias] * scale + shift).astype(np.float32)
    save_file(arrays, str(path))
    path.chmod(0o644)
    print(f"wrote {path}")


def partial(first: Numbers, second: Numbers, given: Numbers) -> float:
    """Return Spearman's correlation of two columns with a third one held constant."""
    table = np.corrcoef([ranks(column.tolist()) for column in (first, second, given)])
    rest = math.sqrt((1 - table[0, 2] ** 2) * (1 - table[1, 2] ** 2))
    return float((table[0, 1] - table[0, 2] * table[1, 2]) / rest)


def write_probabilities(folder: Path, out: Path) -> None:
    """Write the log-probability of each sentence of lau-acceptability under a causal language model, after the token
    that ends a document."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    start = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    scores: dict[str, list[float]] = {}
    for text in dict.fromkeys(row["output"] for row in rows("lau-acceptability")):
        ids = torch.tensor([[start, *tokenizer(text, add_special_tokens=False).input_ids]])
        with torch.no_grad():
            rest = torch.log_softmax(model(ids).logits[0, :-1].double(), -1)
        tokens = rest.gather(1, ids[0, 1:, None])
        scores[text] = [float(tokens.sum()), float(len(tokens))]
    out.write_text(json.dumps({"scores": scores}), encoding="utf-8")


def judge(model: str, log_probabilities: Sequence[Path]) -> None:
    """Compare with the mean ratings of lau-acceptability, by context; resample the 250 sentences."""
    data = rows("lau-acceptability")
    reader = FluencyReader(load_text_encoder(model))
    texts = [row["output"] for row in data]
    columns: dict[str, list[float]] = {"fluency": [mean_value(own) for own in read_values(reader, texts)]}
    for path in log_probabilities:
        scores = json.loads(path.read_text(encoding="utf-8"))["scores"]
        columns[f"{path.stem} mean"] = [scores[text][0] / scores[text][1] for text in texts]
        columns[f"{path.stem} sum"] = [scores[text][0] for text in texts]
    columns["length"] = [float(len(text.split())) for text in texts]
    columns["-length"] = [-value for value in columns["length"]]
    human = [float(np.mean(row["ratings"]["acceptable"])) for row in data]
    rng = np.random.default_rng(0)
    for context in ("none", "real", "random"):
        places = [i for i, row in enumerate(data) if row["task"].endswith(f"context {context}")]
        rated = np.array([human[i] for i in places])
        values = {name: np.array([column[i] for i in places]) for name, column in columns.items()}
        samples = [rng.integers(0, len(places), len(places)) for _ in range(2000)]
        own = np.array([spearman(rated[s].tolist(), values["fluency"][s].tolist()) for s in samples])
        for name, column in values.items():
            drawn = np.array([spearman(rated[s].tolist(), column[s].tolist()) for s in samples])
            low, high = np.quantile(drawn, (0.025, 0.975))
            line = (
                f"context {context:6} {name:28} {spearman(rated.tolist(), column.tolist()):.3f} [{low:.3f}, {high:.3f}]"
            )
            if name == "fluency":
                line += f"   given length {partial(rated, column, values['length']):.3f}"
            else:
                low, high = np.quantile(own - drawn, (0.025, 0.975))
                line += f"   fluency is higher by [{low:.3f}, {high:.3f}]"
            print(line)


#: Sets that nothing was trained on, with the rating that is about fluency.
_OTHERS = {
    "gug": "acceptable",
    "feqa-grammar": "grammatical",
    "webnlg2020.en": "Fluency",
    "summeval-op": "fl",
}


def report_others(model: str, most: int = 800) -> None:
    """Compare with the mean ratings of at most so many outputs of each set, beside length."""
    reader = FluencyReader(load_text_encoder(model))
    rng = np.random.default_rng(0)
    for name, aspect in _OTHERS.items():
        data = [row for row in rows(name) if row["ratings"].get(aspect)]
        data = [data[i] for i in rng.permutation(len(data))[:most]]
        human = np.array([np.mean(row["ratings"][aspect]) for row in data])
        sentences = read_values(reader, [row["output"] for row in data])
        columns = {
            "mean": np.array([mean_value(own) for own in sentences]),
            "minimum": np.array([min((sentence.value for sentence in own), default=0.5) for own in sentences]),
            "length": np.array([float(len(row["output"].split())) for row in data]),
        }
        samples = [rng.integers(0, len(data), len(data)) for _ in range(1000)]
        for column, values in columns.items():
            drawn = [spearman(human[sample].tolist(), values[sample].tolist()) for sample in samples]
            low, high = np.quantile(drawn, (0.025, 0.975))
            agreement = spearman(human.tolist(), values.tolist())
            print(f"{name:14} n {len(data)} {column:8} {agreement:.3f} [{low:.3f}, {high:.3f}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    development = commands.add_parser("dev")
    development.add_argument("model")
    development.add_argument("data", type=Path)
    folding = commands.add_parser("fold")
    folding.add_argument("model", type=Path)
    folding.add_argument("lines", type=float, nargs=4)
    baseline = commands.add_parser("probabilities")
    baseline.add_argument("folder", type=Path)
    baseline.add_argument("out", type=Path)
    judging = commands.add_parser("judge")
    judging.add_argument("model")
    judging.add_argument("log_probabilities", type=Path, nargs="*")
    further = commands.add_parser("others")
    further.add_argument("model")
    options = parser.parse_args()
    if options.command == "dev":
        report_development(options.model, options.data)
    elif options.command == "fold":
        fold(options.model, tuple(options.lines[:2]), tuple(options.lines[2:]))
    elif options.command == "others":
        report_others(options.model)
    elif options.command == "probabilities":
        write_probabilities(options.folder, options.out)
    else:
        judge(options.model, options.log_probabilities)


if __name__ == "__main__":
    main()
