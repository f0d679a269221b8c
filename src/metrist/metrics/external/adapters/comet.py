"""Calls unbabel-comet. Runs in that package's environment (Python 3.8 and later), never in metrist's:

python comet.py in.jsonl out.jsonl settings.json
python comet.py --about
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

NOT_INSTALLED = 3
NO_MODEL = 4
#: What XCOMET itself takes off for an error.
PENALTIES = {"minor": 1, "major": 5, "critical": 10}


def main(arguments: list[str]) -> int:
    if arguments[0] == "--about":
        return about()
    asked, answered, told = arguments
    with open(told, encoding="utf-8") as file:
        settings = json.load(file)
    with open(asked, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    try:
        comet = importlib.import_module("comet")
    except ImportError as fault:
        print(f"cannot import comet: {fault}", file=sys.stderr)
        return NOT_INSTALLED
    try:
        model = load(comet, settings["model"])
        check_references(model, rows)
    except Exception as fault:
        print(fault, file=sys.stderr)
        return NO_MODEL
    answers = predict(model, rows, settings["batch_size"])
    with open(answered, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(answer) + "\n" for answer in answers)
    return 0


def about() -> int:
    try:
        print(json.dumps({"unbabel-comet": version("unbabel-comet")}))
    except PackageNotFoundError:
        print(f"no package unbabel-comet in {sys.prefix}", file=sys.stderr)
        return NOT_INSTALLED
    return 0


def load(comet: Any, name: str) -> Any:
    """A checkpoint file as it is; a folder by the checkpoint in it; any other name is downloaded."""
    if os.path.isdir(name):
        name = os.path.join(name, "checkpoints", "model.ckpt")
    return comet.load_from_checkpoint(name if os.path.exists(name) else downloaded(comet, name))


def downloaded(comet: Any, name: str) -> str:
    try:
        return str(comet.download_model(name))
    except Exception as fault:  # Whatever is wrong, the package calls the model unsupported.
        raise RuntimeError(
            f"{name!r} is no checkpoint on this machine and cannot be downloaded ({fault}); go online once, accept its "
            "terms on huggingface.co where it has any, or give the folder of a copy"
        ) from fault


def check_references(model: Any, rows: list[Any]) -> None:
    if model.requires_references() and "reference" not in rows[0]:
        raise ValueError("this model needs references: needs=['source', 'references']")


def predict(model: Any, rows: list[Any], batch_size: int) -> list[Any]:
    names = {"source": "src", "output": "mt", "reference": "ref"}
    samples = [{names[key]: row[key] for key in names if key in row} for row in rows]
    found = model.predict(samples, batch_size=batch_size, gpus=gpus(), progress_bar=False)
    more = found.get("metadata", {})
    spans = more.get("error_spans") or [[] for _ in rows]
    scores = {key: column for key, column in more.items() if numbers(column, len(rows))}
    return [
        {
            "value": value,
            "parts": {key: column[i] for key, column in scores.items()},
            "errors": [error(span) for span in spans[i]],
        }
        for i, value in enumerate(found["scores"])
    ]


def gpus() -> int:
    torch = importlib.import_module("torch")
    return 1 if torch.cuda.is_available() and os.environ.get("METRIST_DEVICE") != "cpu" else 0


def numbers(column: Any, size: int) -> bool:
    return isinstance(column, list) and len(column) == size and all(isinstance(one, float) for one in column)


def error(span: Any) -> Any:
    return {
        "aspect": "translation",
        "severity": span["severity"],
        "penalty": PENALTIES.get(span["severity"]),
        "start": span.get("start"),
        "end": span.get("end"),
        "text": span.get("text", ""),
        "explanation": f"confidence {span['confidence']:.2f}" if "confidence" in span else "",
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
