"""`--help` of each command."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("verb", "default"),
    [
        (["compare"], "[default: (all)]"),
        (["convert"], "[default: (detected)]"),
        (["reproduce"], "[default: (standard output)]"),
        (["train", "export"], "[default: (a whole row)"),
    ],
)
def test_help_shows_described_defaults(metrist, verb: list[str], default: str) -> None:
    """Brackets within a help text were taken for markup once, and vanished."""
    code, out, _ = metrist(*verb, "--help")
    assert code == 0
    assert default in " ".join(out.split())


def test_too_little_memory_is_one_line(metrist, outputs, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("metrist.run.score", fail)
    answer = metrist("score", outputs, "-m", "length")
    assert answer.code == 2
    assert "not enough memory" in answer.err
