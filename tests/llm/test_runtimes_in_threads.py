"""Two threads with different runtimes do not disturb each other: nothing of a run is global to the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from error_codes import raises_code
from fault_server import FaultServer, answer
from metrist.errors import ModelError
from metrist.llm import gateway
from metrist.llm.base import LLM
from metrist.llm.cache import open_cache
from metrist.llm.estimate import current_estimate, estimate_calls
from metrist.llm.messages import Completion, Conversation, Sampling
from metrist.llm.openai import OpenAI
from metrist.llm.rate_limit import rate_limiter
from metrist.runtime import Runtime
from scripted_llm import Scripted, say

TEXTS = [f"text {number}" for number in range(12)]


def in_threads(*works: Callable[[], Any]) -> list[Any]:
    """The results of works that run at the same time."""
    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(work) for work in works]]


def test_each_thread_keeps_to_its_own_budget_and_cache(tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text("[[price]]\nmodel = '*'\ninput = 1_000_000\noutput = 1_000_000\n")
    both = threading.Barrier(2, timeout=30)

    def run(name: str, **options: Any) -> list[Completion]:
        runtime = Runtime(llm_cache=tmp_path / name, prices=tmp_path / "prices.toml", run_id=name, **options)
        both.wait()
        return gateway.complete(OpenAI(model=name, url=server.url), TEXTS, max_tokens=1, runtime=runtime)

    def run_without_money() -> str:
        with raises_code(ModelError, "budget", "$0") as caught:
            run("b", max_cost=0.0)
        return str(caught.value)

    with FaultServer(lambda request: answer(request.prompt.upper())) as server:
        answers, message = in_threads(lambda: run("a"), run_without_money)
    assert [completion.text for completion in answers] == [text.upper() for text in TEXTS]
    assert "$0" in message
    assert {request.fields["model"] for request in server.requests} == {"a"}
    stored = [open_cache(Runtime(llm_cache=tmp_path / name)).contents().answers for name in "ab"]
    assert [sum(counts.values()) for counts in stored] == [12, 0]


def test_budgets_of_two_runs_are_counted_apart(tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text("[[price]]\nmodel = 'm'\ninput = 10_000\noutput = 10_000\n")

    def run(name: str, cost: float) -> int:
        runtime = Runtime(llm_cache=tmp_path / "cache", prices=tmp_path / "prices.toml", run_id=name, max_cost=cost)
        log = tmp_path / f"{name}.log"
        log.touch()
        llm = Scripted(log=str(log), tokens=(20, 10), weights=name)
        with suppress(ModelError):
            gateway.complete(llm, say(*TEXTS), max_tokens=10, runtime=runtime)
        return len(log.read_text().splitlines())

    rich, poor = in_threads(lambda: run("rich", 100.0), lambda: run("poor", 1.0))
    assert rich == 12
    assert 1 <= poor <= 3


def test_limits_on_the_rate_belong_to_the_server_and_the_runtime() -> None:
    slow, fast = Runtime(rpm=1), Runtime(rpm=600)
    url = "http://server.example/only-here"
    assert rate_limiter(url, slow) is rate_limiter(url, Runtime(rpm=1, run_id="another run of this process"))
    assert rate_limiter(url, slow) is not rate_limiter(url, fast)
    assert rate_limiter(url, slow).book(1) == 0
    assert rate_limiter(url, slow).book(1) > 50
    assert rate_limiter(url, fast).book(1) == 0


def test_a_dry_run_in_one_thread_leaves_the_calls_of_another_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    inside, outside = threading.Event(), threading.Event()

    def dry() -> int:
        with estimate_calls() as estimate:
            inside.set()
            assert outside.wait(30)
            gateway.complete(Scripted(log=str(log)), say("dry"))
        return sum(counted.calls for counted in estimate.by_llm.values())

    def wet() -> str:
        assert inside.wait(30)
        assert current_estimate() is None
        (completion,) = gateway.complete(Scripted(log=str(log)), say("wet"))
        outside.set()
        return completion.text

    assert in_threads(dry, wet) == [1, "WET"]
    assert log.read_text().splitlines() == ["wet"]


def test_the_environment_is_only_a_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("METRIST_LLM_CACHE", str(tmp_path / "from environment"))
    monkeypatch.setenv("METRIST_MAX_COST", "0")
    runtime = Runtime(llm_cache=tmp_path / "given")
    (completion,) = gateway.complete(Scripted(), say("a"), runtime=runtime)
    assert completion.text == "A"
    assert open_cache(runtime).exists
    assert not (tmp_path / "from environment").exists()


@dataclass(frozen=True)
class Gated(LLM):
    """Logs each batch and answers it when its gate opens; the first batch fails on request."""

    fails: bool = False
    llm_name: ClassVar[str] = "gated"
    batches: ClassVar[list[list[str]]] = []
    arrived: ClassVar[dict[str, threading.Event]] = {}
    gate: ClassVar[threading.Event] = threading.Event()

    def complete(self, conversations: Sequence[Conversation], _: Sampling) -> list[Completion]:
        words = [conversation[0].text for conversation in conversations]
        is_first = not self.batches
        self.batches.append(words)
        self.arrived[words[-1]].set()
        assert self.gate.wait(30)
        if self.fails and is_first:
            raise ModelError("the server has gone")
        return [Completion(text=word.upper()) for word in words]


@pytest.mark.parametrize("fails", [False, True])
def test_threads_that_ask_the_same_at_once_share_the_answers(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived = {word: threading.Event() for word in ("a", "b", "own")}
    for name, value in {"batches": [], "arrived": arrived, "gate": threading.Event()}.items():
        monkeypatch.setattr(Gated, name, value)

    def ask(*words: str) -> list[str]:
        try:
            return [completion.text for completion in gateway.complete(Gated(fails=fails), say(*words))]
        except ModelError as error:
            return [str(error)]

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, "a", "b")
        assert arrived["b"].wait(30)
        second = pool.submit(ask, "b", "a", "own")
        assert arrived["own"].wait(30)
        Gated.gate.set()
        assert first.result(30) == (["the server has gone"] if fails else ["A", "B"])
        assert second.result(30) == ["B", "A", "OWN"]
    # What the first thread did not get, the second asks for itself.
    assert Gated.batches == [["a", "b"], ["own"], *([["b", "a"]] if fails else [])]
