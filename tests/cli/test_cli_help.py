"""What `--help` tells of each verb."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        (["compare"], "[default: (all)]"),
        (["convert"], "[default: (detected)]"),
        (["reproduce"], "[default: (standard output)]"),
        (["train", "export"], "[default: (a whole row)]"),
    ],
)
def test_what_holds_where_nothing_is_given_is_shown(metrist, verb: list[str], said: str) -> None:
    """Brackets within a help text were taken for markup once, and vanished."""
    code, out, _ = metrist(*verb, "--help")
    assert code == 0
    assert said in " ".join(out.replace("│", " ").split())
