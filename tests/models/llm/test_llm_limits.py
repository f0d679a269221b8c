"""Limits on requests: never passed in any minute, and not far below what they allow."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault_server import FaultServer, answer
from metrist.errors import ModelError
from metrist.models.llm import limits
from metrist.models.llm.limits import Bucket, Rates
from metrist.models.llm.openai import OpenAI
from metrist.models.llm.talk import Message, Sampling


def sending_times(limit: int, amounts: list[int], pauses: list[float]) -> list[float]:
    """When each is sent by askers that come after those pauses."""
    now, bucket, times = 0.0, Bucket(limit, 0.0), []
    for amount, pause in zip(amounts, pauses, strict=True):
        now += pause
        times.append(now + bucket.take(amount, now))
    return times


def most_in_a_minute(times: list[float], amounts: list[int]) -> int:
    """By brute force: the most that was sent in any half-open minute that ends with a sending."""
    sums = [
        sum(amount for time_, amount in zip(times, amounts, strict=True) if end - 60 + 1e-6 < time_ <= end)
        for end in times
    ]
    return max(sums)


@given(st.integers(1, 200), st.lists(st.sampled_from([0.0, 0.0, 0.1, 5.0, 70.0]), min_size=1, max_size=150))
def test_no_minute_holds_more_requests_than_allowed(limit: int, pauses: list[float]) -> None:
    ones = [1] * len(pauses)
    times = sending_times(limit, ones, pauses)
    assert times == sorted(times)
    assert most_in_a_minute(times, ones) <= limit


@given(st.integers(0, 2**32))
def test_no_minute_holds_more_tokens_than_allowed_but_for_the_first_in_it(seed: int) -> None:
    rng = random.Random(seed)
    amounts = [rng.randint(1, 300) for _ in range(200)]
    pauses = [rng.choice([0.0, 0.2, 9.0]) for _ in amounts]
    times = sending_times(6000, amounts, pauses)
    assert most_in_a_minute(times, amounts) <= 6000 + 300


def test_what_is_allowed_is_nearly_used() -> None:
    times = sending_times(600, [1] * 6000, [0.0] * 6000)
    assert 600 < times[-1] < 615  # Ten minutes for ten minutes' worth.


def test_a_correction_lets_others_go_sooner_or_later() -> None:
    bucket = Bucket(600, 0.0)
    assert bucket.take(1000, 0.0) == pytest.approx(990 / ((600 - 10 + 1) / 60))
    bucket.put_back(1000, 0.0)
    assert bucket.take(10, 0.0) == 0
    bucket.put_back(-591, 0.0)
    assert bucket.take(0, 0.0) == pytest.approx(60)


def test_a_correction_fills_no_more_than_a_second_s_worth() -> None:
    bucket = Bucket(600, 0.0)
    bucket.put_back(500, 0.0)
    assert bucket.take(10, 0.0) == 0
    assert bucket.take(1, 0.0) > 0


def test_without_limits_nothing_waits() -> None:
    rates = Rates(None, None)
    assert {rates.book(10**9) for _ in range(100)} == {0.0}
    rates.correct(5, 3)


def _run(url: str, count: int, sampling: Sampling) -> float:
    started = time.monotonic()
    conversations = [(Message("user", f"question {number}"),) for number in range(count)]
    OpenAI(model="m", url=url).complete(conversations, sampling, lambda _number, _completion: None)
    return time.monotonic() - started


def test_requests_are_spread_over_the_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_LLM_RPM", "1200")
    with FaultServer(lambda _: answer("hello")) as server:
        seconds = sum(_run(server.url, 20, Sampling()) for _ in range(2))  # Both share what is allowed.
    # 20 at once, and 20 more at (1200 - 20 + 1) / 60 a second.
    assert 0.9 < seconds < 10


def test_tokens_are_booked_by_guess_and_corrected_by_the_servers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_LLM_TPM", "120000")
    monkeypatch.setenv("METRIST_LLM_CONCURRENCY", "1")
    with FaultServer(lambda _: answer("hello", usage={"prompt_tokens": 5, "completion_tokens": 1})) as server:
        corrected = _run(server.url, 20, Sampling(max_tokens=1900))
    with FaultServer(lambda _: answer("hello", usage={"prompt_tokens": None})) as server:
        guessed = _run(server.url, 2, Sampling(max_tokens=1900))
    assert corrected < 10  # Without, it would be 19.
    assert guessed > 0.9


@pytest.mark.parametrize("variable", [limits.CONCURRENCY, limits.RPM, limits.TPM])
@pytest.mark.parametrize("value", ["0", "-3", "many", "1.5", "²"])
def test_a_limit_that_is_no_number_is_refused(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ModelError, match=f"{variable} must be a whole number of at least 1, got '{value}'"):
        _run("http://127.0.0.1:9/v1", 1, Sampling())


def test_defaults_hold_where_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (limits.CONCURRENCY, limits.TIMEOUT, limits.RPM):
        monkeypatch.setenv(variable, "")
    assert (limits.concurrency(), limits.timeout(), limits.whole_number(limits.RPM)) == (16, 300.0, None)
