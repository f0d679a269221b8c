"""Runs with an LLM inside a running event loop, as in a notebook, and from several threads at once."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import metrist
from fault_server import Act, FaultServer, Request, answer
from metrist.llm import openai
from metrist.runtime import Runtime

ROWS = [
    {"item": str(number), "system": system, "output": f"{system} output {number}", "source": f"text {number}"}
    for number in range(6)
    for system in ("first", "second")
]


def _respond(request: Request) -> Act:
    """Grades by the output's number, and choices, in the form that is asked for."""
    marks = re.findall(r'"id": "(\w+)"', request.prompt)
    if not marks:
        return answer(request.prompt.upper())
    facts: dict[str, Any] = {"id": marks[-1]}
    grade = int(re.findall(r"(?:first|second) output (\d)", request.prompt)[-1]) % 3 + 1
    facts |= {"reasons": "so", "naturalness": grade, "relatedness": grade, "correctness": grade, "better": "A"}
    return answer(json.dumps(facts))


def _calls(llm: str, runtime: Runtime) -> list[Callable[[], Any]]:
    def score() -> list[float]:
        results = metrist.score(ROWS, {"judge": f"judge(llm={llm})"}, runtime=runtime)
        return results["judge"].values.tolist()

    def prefer() -> list[Any]:
        results = metrist.prefer(ROWS, f"chars=judge_pair(llm={llm})", pairs="all", runtime=runtime)
        return [judgment.preference for judgment in results.judgments["chars"]]

    def explain() -> list[Any]:
        with runtime.activate():
            explanations = metrist.explain(ROWS[:3], f"judge(llm={llm})")
        return [output.item for output in explanations.outputs]

    def complete() -> list[str]:
        completions = metrist.complete(llm, ["a", "b"], runtime=runtime)
        return [completion.text for completion in completions]

    return [score, prefer, explain, complete]


@pytest.fixture
def calls(tmp_path: Path) -> Any:
    openai.reset_server_states()
    with FaultServer(_respond) as server:
        yield lambda name: _calls(
            f"openai(model='{name}', url='{server.url}')", Runtime(llm_cache=tmp_path / name, run_id=name)
        )


def test_calls_inside_a_running_event_loop_give_the_same_as_outside(calls: Any) -> None:
    expected = [call() for call in calls("outside")]
    assert expected[0] == [n % 3 + 1 for n in range(6) for _ in range(2)]
    assert expected[3] == ["A", "B"]

    async def main() -> tuple[list[Any], list[Any]]:
        direct = [call() for call in calls("inside")]
        in_threads = await asyncio.gather(*(asyncio.to_thread(call) for call in calls("threads")))
        return direct, list(in_threads)

    direct, in_threads = asyncio.run(main())
    assert direct == expected
    assert in_threads == expected


def test_four_threads_that_start_together_give_the_same_as_one(calls: Any) -> None:
    expected = [call() for call in calls("alone")]
    together = threading.Barrier(4, timeout=60)

    def run(number: int) -> list[Any]:
        own = calls("shared" if number % 2 else f"thread{number}")  # Two of them share a cache and a run.
        together.wait()
        return [call() for call in own]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == [expected] * 4
