"""`metrist serve`: its options become settings, and what makes no sense is refused before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metrist.web.service import server
from metrist.web.service.settings import TOKENS_VARIABLE, Check, ServiceSettings


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], ServiceSettings, dict[str, Any]]]:
    """What would be served."""
    calls: list[tuple[list[str], ServiceSettings, dict[str, Any]]] = []
    monkeypatch.setattr(
        server, "serve", lambda metrics, settings, **options: calls.append((metrics, settings, options))
    )
    monkeypatch.delenv(TOKENS_VARIABLE, raising=False)
    return calls


def test_options_become_settings(metrist, served: list[Any], tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("ci:a-token-of-24-characters\n")
    limits = ["--max-body", "2", "--max-records", "7", "--queue", "8", "--max-requests", "9", "--time-limit", "3"]
    guard = ["--guard", "rougeL>=0.5", "--guard", "chrf<=90", "--guard-budget", "120", "--guard-policy", "open"]
    place = ["--host", "0.0.0.0", "--port", "0", "--workers", "3", "--tokens", str(tokens)]
    other = ["--batch-wait", "5", "--log", "errors", "--log-texts", "--grace", "4", "--max-cost", "1.5"]
    code, _, err = metrist("serve", "-m", "rougeL", "-m", "chrf", *limits, *guard, *place, *other)
    assert code == 0, err
    ((metrics, settings, options),) = served
    assert metrics == ["rougeL", "chrf"]
    assert (options["port"], options["workers"]) == (0, 3)
    assert settings.tokens is not None
    assert settings.tokens.identify(b"a-token-of-24-characters") == "ci"
    assert settings.checks == (Check(metric="rougeL", minimum=0.5), Check(metric="chrf", maximum=90.0))
    assert (settings.guard_budget, settings.guard_policy) == (0.12, "open")
    assert (settings.max_body, settings.max_records, settings.max_queue, settings.max_requests) == (2_000_000, 7, 8, 9)
    assert (settings.time_limit, settings.batch_wait, settings.grace) == (3, 0.005, 4)
    assert (settings.log, settings.log_texts, settings.runtime) == ("errors", True, {"max_cost": 1.5})


def test_metrics_with_a_model_get_one_process(metrist, served: list[Any]) -> None:
    metrist("serve", "-m", "rougeL", "-m", "consistency")
    assert served[0][2]["workers"] == 1
