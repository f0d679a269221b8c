"""Limits on requests: never passed in any minute, and not far below what they allow."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from error_codes import raises_code
from fault_server import Act, FaultServer, answer
from metrist.errors import RunError
from metrist.llm.messages import Message, Sampling
from metrist.llm.openai import OpenAI
from metrist.llm.rate_limit import Bucket, RateLimiter
from metrist.metrics.registry import build
from metrist.run import executors, score
from metrist.run.executors import Processes, Serial, choose_executor
from metrist.runtime import VARIABLES, Runtime


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
    rates = RateLimiter(None, None)
    assert {rates.book(10**9) for _ in range(100)} == {0.0}
    rates.correct(5, 3)


def _run(url: str, count: int, sampling: Sampling) -> float:
    started = time.monotonic()
    conversations = [(Message("user", f"question {number}"),) for number in range(count)]
    OpenAI(model="m", url=url).complete(conversations, sampling)
    return time.monotonic() - started


def test_requests_are_spread_over_the_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_LLM_RPM", "1200")
    with FaultServer(lambda _: answer("hello")) as server:
        seconds = sum(_run(server.url, 20, Sampling()) for _ in range(2))  # Both share what is allowed.
    # 20 at once, and 20 more at (1200 - 20 + 1) / 60 a second.
    assert 0.9 < seconds < 30


def test_tokens_are_booked_by_guess_and_corrected_by_the_servers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_LLM_TPM", "120000")
    monkeypatch.setenv("METRIST_LLM_CONCURRENCY", "1")
    with FaultServer(lambda _: answer("hello", usage={"prompt_tokens": 5, "completion_tokens": 1})) as server:
        corrected = _run(server.url, 20, Sampling(max_tokens=1900))
    with FaultServer(lambda _: answer("hello", usage={"prompt_tokens": None})) as server:
        guessed = _run(server.url, 2, Sampling(max_tokens=1900))
    assert corrected < 15  # Without, it would be 19.
    assert guessed > 0.9


@pytest.mark.parametrize("variable", ["METRIST_LLM_CONCURRENCY", "METRIST_LLM_RPM", "METRIST_LLM_TPM"])
@pytest.mark.parametrize("value", ["0", "-3", "many", "1.5", "²"])
def test_a_limit_that_is_no_number_is_refused(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    with raises_code(RunError, "invalid_value", variable, value):
        _run("http://127.0.0.1:9/v1", 1, Sampling())


def test_defaults_hold_where_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES.values():
        monkeypatch.setenv(variable, "")
    runtime = Runtime.from_environment()
    assert (runtime.concurrency, runtime.timeout, runtime.rpm) == (16, 300.0, None)


@given(st.integers(1, 40), st.integers(1, 50), st.none() | st.integers(1, 5000), st.none() | st.integers(1, 10**6))
def test_processes_that_share_the_limits_keep_to_them_together(
    processes: int, at_once: int, requests: int | None, tokens: int | None
) -> None:
    whole = Runtime(concurrency=at_once, rpm=requests, tpm=tokens)
    sharers = min(processes, whole.max_llm_processes)
    share = whole.split(sharers)
    for name in ("concurrency", "rpm", "tpm"):
        part, limit = getattr(share, name), getattr(whole, name)
        assert (part is None) == (limit is None)
        if part is not None:
            assert part >= 1
            assert part * sharers <= limit < (part + 1) * sharers


SEEN = """
@dataclass(frozen=True)
class Seen(Metric):
    asks_llm = {asks!r}
    resident = True
    folder: str = ""
    workers: int = 0

    def score(self, shard):
        open(f"{{self.folder}}/{{os.getpid()}}.pid", "w").close()
        while len([name for name in os.listdir(self.folder) if name.endswith(".pid")]) < self.workers:
            time.sleep(0.01)  # Until each worker has begun a shard.
        runtime = shard.runtime
        found = (runtime.concurrency, runtime.rpm or 0, runtime.tpm or 0)
        parts = dict(zip("crt", map(float, found)), process=float(os.getpid()))
        return Scores.of(Score(value=0.0, parts=parts) for _ in shard.records)
"""


@pytest.mark.parametrize(
    ("asks", "rpm", "workers", "seen"),
    [(True, 100, 3, (5, 33, 300)), (True, 2, 2, (8, 1, 450)), (False, 100, 3, (16, 100, 900))],
)
def test_workers_of_a_run_get_their_part_of_the_limits(module, monkeypatch, tmp_path, asks, rpm, workers, seen) -> None:
    monkeypatch.delenv("METRIST_LLM_CONCURRENCY", raising=False)
    rows = [{"item": str(n), "output": "a"} for n in range(12)]
    metric = module(SEEN.format(asks=asks)).Seen(folder=str(tmp_path), workers=workers)
    result = score(rows, [metric], executor=Processes(3), shard_size=2, rpm=rpm, tpm=900).scores[metric.text].parts
    assert len(set(result["process"])) == workers
    for name, part in zip("crt", seen, strict=True):
        np.testing.assert_array_equal(result[name], np.full(12, part))


def test_the_limits_are_divided_among_the_workers_that_there_are(module, tmp_path) -> None:
    rows = [{"item": str(n), "output": "a"} for n in range(4)]
    metric = module(SEEN.format(asks=True)).Seen(folder=str(tmp_path), workers=2)
    result = (
        score(rows, [metric], executor=Processes(8), shard_size=2, concurrency=16, rpm=80).scores[metric.text].parts
    )
    assert len(set(result["process"])) == 2
    assert (set(result["c"]), set(result["r"])) == ({8}, {40})


def test_a_judge_in_several_processes_has_no_more_requests_in_flight_than_allowed() -> None:
    arrivals: list[float] = []

    def slow(_request):
        arrivals.append(time.monotonic())
        return Act(answer("no grade").data, after=0.1)

    rows = [{"item": str(n), "output": f"output {n}", "source": "a text"} for n in range(36)]
    with FaultServer(slow) as server:
        judge = f"judge(llm=openai(model='m', url='{server.url}'), rubric='single_answer')"
        with raises_code(RunError, "metric_failed", 36):
            score(rows, [judge], executor=Processes(3), shard_size=12, concurrency=6)
    assert len(arrivals) >= 36
    # The next request goes out when the one before has been answered, 0.1 seconds after it came.
    at_once = [sum(-0.09 < other - one <= 0 for other in arrivals) for one in arrivals]
    assert max(at_once) <= 6


def test_without_cards_a_judge_stays_in_this_process_whatever_word_is_said(monkeypatch) -> None:
    monkeypatch.setattr(executors, "list_cards", lambda _device: ())
    judge = build("judge(llm=openai(model='m'))")
    for word in (None, "processes", "serial"):
        assert choose_executor(word, [judge, build("chrf")]) == (Serial(), [])
    assert choose_executor("processes", [build("chrf")]) == (Processes(), [])
