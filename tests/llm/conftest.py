"""Each test meets servers that it knows nothing of, and waits little before it asks again."""

from __future__ import annotations

import pytest

from metrist.llm import openai, retry


@pytest.fixture(autouse=True)
def unknown_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that may have another's port is not taken for it."""
    monkeypatch.setattr(retry, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(retry, "LONGEST_WAIT", 0.2)
    openai.reset_server_states()
