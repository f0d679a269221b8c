"""Calls google-research/bleurt. Runs in that package's environment (Python 3.8 and later), never in metrist's:

python bleurt.py in.jsonl out.jsonl settings.json
python bleurt.py --about
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version

NOT_INSTALLED = 3
NO_MODEL = 4


def main(arguments: list[str]) -> int:
    if arguments[0] == "--about":
        return about()
    asked, answered, told = arguments
    with open(told, encoding="utf-8") as file:
        settings = json.load(file)
    with open(asked, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    try:
        bleurt = importlib.import_module("bleurt.score")
    except ImportError as fault:
        print(f"cannot import bleurt: {fault}", file=sys.stderr)
        return NOT_INSTALLED
    checkpoint = settings["checkpoint"]
    if not os.path.isdir(checkpoint):
        print(
            f"there is no checkpoint folder {checkpoint!r}: download it from the page of google-research/bleurt, "
            "unpack it, and name its parent folder: METRIST_BLEURT_CHECKPOINTS=FOLDER",
            file=sys.stderr,
        )
        return NO_MODEL
    scorer = bleurt.BleurtScorer(checkpoint)
    references, outputs = [row["reference"] for row in rows], [row["output"] for row in rows]
    scores = scorer.score(references=references, candidates=outputs, batch_size=settings["batch_size"])
    with open(answered, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"value": float(score)}) + "\n" for score in scores)
    return 0


def about() -> int:
    try:
        print(json.dumps({"bleurt": version("BLEURT")}))
    except PackageNotFoundError:
        print(f"no package BLEURT in {sys.prefix}", file=sys.stderr)
        return NOT_INSTALLED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
