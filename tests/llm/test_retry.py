"""How long to wait before asking again."""

from __future__ import annotations

import random
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrist.llm.http import Response
from metrist.llm.retry import (
    FIRST_CONTACT,
    LONGEST_WAIT,
    RetryableError,
    RetryPolicy,
    classify_error,
    parse_retry_after,
)

POLICY = RetryPolicy(attempts=8, seconds=900.0)

NOW = 1_700_000_000.0


@pytest.fixture(autouse=True)
def unknown_servers() -> None:
    """The waits themselves are tested here."""


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "-7"}, 0),
        ({"retry-after": "inf"}, 0),
        ({"retry-after": "nan"}, 0),
        ({"retry-after": "soon"}, 0),
        ({"retry-after": ""}, 0),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "?", "retry-after": "7"}, 7),
        ({"retry-after": formatdate(NOW + 30, usegmt=True)}, 30),
        ({"retry-after": formatdate(NOW - 30, usegmt=True)}, 0),
        # The server's clock is an hour ahead of ours.
        ({"retry-after": formatdate(NOW + 3630, usegmt=True), "date": formatdate(NOW + 3600, usegmt=True)}, 30),
        ({"retry-after": "Tue, 99 Nov 2023 99:99:99 GMT"}, 0),
    ],
)
def test_what_the_server_says_is_read(headers: dict[str, str], seconds: float) -> None:
    assert parse_retry_after(headers, NOW) == pytest.approx(seconds)


@given(st.text(max_size=40))
def test_nothing_that_a_server_says_is_raised(text: str) -> None:
    assert parse_retry_after({"retry-after": text, "date": text, "retry-after-ms": text}, NOW) >= 0


def test_waits_double_up_to_the_longest() -> None:
    for attempt, most in ((2, 0.5), (3, 1.0), (4, 2.0), (5, 4.0), (8, 30.0), (2000, LONGEST_WAIT)):
        waits = [POLICY.delay(attempt, 0, random.Random(seed)) for seed in range(200)]
        assert most / 2 <= min(waits) < most * 0.55
        assert most * 0.95 < max(waits) <= most


def test_nobody_comes_before_the_time_that_the_server_said() -> None:
    waits = [POLICY.delay(2, 5.0, random.Random(seed)) for seed in range(200)]
    assert min(waits) >= 5
    assert 5.2 < max(waits) <= 5.25
    assert len(set(waits)) == 200


def test_the_policy_gives_up_after_its_attempts_or_its_seconds() -> None:
    assert not POLICY.is_exhausted(7, 899.0, first_contact=False)
    assert POLICY.is_exhausted(8, 1.0, first_contact=False)
    assert POLICY.is_exhausted(1, 901.0, first_contact=False)
    assert POLICY.is_exhausted(FIRST_CONTACT, 1.0, first_contact=True)


@pytest.mark.parametrize(
    ("status", "retried", "throttled"),
    [
        *((status, True, False) for status in (408, 409, 425, 500, 502, 503, 504)),
        *((status, True, True) for status in (429, 529)),
        *((status, False, False) for status in (400, 401, 403, 404, 413, 422)),
    ],
)
def test_these_statuses_are_retried_and_throttled_ones_do_not_count(
    status: int, retried: bool, throttled: bool
) -> None:
    outcome = classify_error(Response(status, {}, b'{"error": {"message": "no"}}'), "m", ())
    assert isinstance(outcome, RetryableError) is retried
    assert getattr(outcome, "throttled", False) is throttled
