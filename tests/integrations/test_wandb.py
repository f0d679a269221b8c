"""Scores in the files of Weights & Biases, which it writes offline and sends later: `make test-wandb`."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

import metrist
from metrist.compat.tracking import log_results

wandb = pytest.importorskip("wandb", reason="wandb is not installed (make test-wandb)")

from wandb.proto import wandb_internal_pb2  # noqa: E402

DEMO = Path(__file__).parents[2] / "demo" / "sample.jsonl"


def read_records(folder: Path) -> list[Any]:
    """The records of the only run that was written offline: after 7 bytes, blocks of 32 KiB with pieces of records,
    each with a checksum, its length and its kind (1 whole, 2 first, 3 middle, 4 last), as in LevelDB's logs."""
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    data, place, pieces, records = path.read_bytes(), 7, b"", []
    while place < len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        pieces += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            records.append(wandb_internal_pb2.Record.FromString(pieces))
            pieces = b""
    return records


def test_an_offline_run_has_scores_signatures_and_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    results = metrist.score(DEMO, ["rougeL(stem=True)"])
    log_results(results, "wandb:evaluation", step=7)
    wandb.teardown()  # Its process may still be writing.
    records = read_records(tmp_path)
    history = next(record.history for record in records if record.WhichOneof("record_type") == "history")
    values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in history.item}
    assert values["_step"] == 7
    for score in results.system_scores():
        name = f"{score.system}/{score.metric}"
        assert values[name] == pytest.approx(score.value)
        assert (values[f"{name}.low"], values[f"{name}.high"]) == pytest.approx((score.low, score.high))
    run = next(record.run for record in records if record.WhichOneof("record_type") == "run")
    assert run.project == "evaluation"
    settings = [update.value_json for record in records for update in record.config.update]
    settings += [update.value_json for update in run.config.update]
    assert any(json.dumps(results.signatures["rougeL(stem=True)"])[1:-1] in text for text in settings)
    assert wandb.run is None
