"""Calls the code of maszhongming/UniEval, a folder and no package. Runs in an environment with what that code imports
(Python 3.8 and later), never in metrist's:

    python unieval.py in.jsonl out.jsonl settings.json
    python unieval.py --about FOLDER
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from typing import Any

NOT_INSTALLED = 3
NO_MODEL = 4
CODE = ("utils.py", os.path.join("metric", "evaluator.py"), os.path.join("metric", "scorer.py"))


def main(arguments: list[str]) -> int:
    if arguments[0] == "--about":
        return about(arguments[1])
    asked, answered, told = arguments
    with open(told, encoding="utf-8") as file:
        settings = json.load(file)
    with open(asked, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    sys.path.insert(0, settings["folder"])
    try:
        evaluators = importlib.import_module("metric.evaluator")
        device = "cuda:0" if importlib.import_module("torch").cuda.is_available() else "cpu"
    except ImportError as fault:
        print(f"cannot import UniEval's code: {fault}", file=sys.stderr)
        return NOT_INSTALLED
    if os.environ.get("METRIST_DEVICE") == "cpu":
        device = "cpu"
    try:
        evaluator = evaluators.get_evaluator(settings["task"], device=device)
    except OSError as fault:
        print(f"{type(fault).__name__}: {fault}", file=sys.stderr)
        return NO_MODEL
    answers = evaluate(evaluator, rows, settings)
    with open(answered, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(answer) + "\n" for answer in answers)
    return 0


def about(folder: str) -> int:
    """UniEval has no version: its code's hash stands for one."""
    whole = hashlib.sha256()
    for name in CODE:
        try:
            with open(os.path.join(folder, name), "rb") as file:
                whole.update(file.read())
        except OSError as fault:
            print(f"no UniEval in {folder}: {fault}", file=sys.stderr)
            return NOT_INSTALLED
    print(json.dumps({"unieval": whole.hexdigest()[:12]}))
    return 0


def evaluate(evaluator: Any, rows: list[Any], settings: Any) -> list[Any]:
    failures = [failure(row, settings) for row in rows]
    # Only what can be judged is sent: UniEval divides by the number of sentences, and an empty output has none.
    able = [row for row, why in zip(rows, failures) if not why]  # noqa: B905 - Python 3.8 has no strict
    data = [
        {
            "system_output": row["output"],
            "source": row["source"] or "",
            "reference": row.get("reference") or "",
            "context": row["context"] or "",
        }
        for row in able
    ]
    # Its checks of single facts take no choice of dimensions.
    more = {} if settings["task"] == "fact" else {"dims": settings["aspects"], "overall": False}
    found = iter(evaluator.evaluate(data, **more) if data else [])
    return [{"failure": why} if why else answer(next(found), settings["value"]) for why in failures]


def failure(row: Any, settings: Any) -> str | None:
    if not row["output"].strip():
        return "the output is empty"
    if settings["needs_context"] and row["context"] is None:
        return "unieval needs the fact that the response should use, in a column named 'context'"
    return None


def answer(scores: Any, wanted: str) -> Any:
    parts = {key: float(value) for key, value in scores.items()}
    return {"value": parts[wanted] if wanted in parts else sum(parts.values()) / len(parts), "parts": parts}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
