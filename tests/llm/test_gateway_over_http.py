"""A run over HTTP that is killed and begun again: what was stored is not sent a second time, and nothing is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from fault_server import SILENT, Act, FaultServer, Mixed, Request
from metrist.llm.cache import open_cache

CLIENT = """
import sys
from metrist.llm import gateway, retry
from metrist.llm.openai import OpenAI
from metrist.llm.messages import Message, Sampling
retry.FIRST_WAIT, retry.LONGEST_WAIT = 0.01, 0.2
talks = [[Message("user", f"question {n}")] for n in range(int(sys.argv[2]))]
for answer in gateway.complete(OpenAI(model="m", url=sys.argv[1]), talks, Sampling()):
    print("failed" if answer.failure else answer.text)
"""
COUNT = 400


def stored() -> set[str]:
    return {kept.request.messages[-1].text for kept in open_cache().entries()} if open_cache().exists else set()


@pytest.mark.skipif(sys.platform == "win32", reason="kills a process by signal")
def test_a_killed_run_sends_only_what_was_not_stored(
    monkeypatch: pytest.MonkeyPatch, popen: Callable[..., subprocess.Popen[str]]
) -> None:
    monkeypatch.setenv("METRIST_LLM_CONCURRENCY", "64")
    monkeypatch.setenv("METRIST_LLM_ATTEMPTS", "12")
    mixed, answers = Mixed(seed=5), 0

    def client() -> subprocess.Popen[str]:
        return popen([sys.executable, "-c", CLIENT, server.url, str(COUNT)], stdout=subprocess.PIPE, text=True)

    def respond(request: Request) -> Act:
        return mixed(request) if mixed.dealt["answered"] < answers else SILENT

    with FaultServer(respond) as server:
        for expected in (60, 160):
            answers = expected + 50  # Then the server is silent, so that the client cannot finish before it is killed.
            run = client()
            while len(stored()) < expected:
                assert run.poll() is None
                time.sleep(0.02)
            run.send_signal(signal.SIGKILL)
            run.communicate(timeout=60)
            kept = stored()
            assert expected <= len(kept) < COUNT
            # What was on its way when the client died is told apart from what the next one sends.
            while server.speakers:
                time.sleep(0.01)
            sent = len(server.requests)
        answers = 100 * COUNT
        out, _ = client().communicate(timeout=600)
        again = [request.prompt for request in server.requests[sent:]]
    assert not kept & set(again)
    assert set(again) == {f"question {n}" for n in range(COUNT)} - kept
    lines = out.splitlines()
    assert len(lines) == COUNT
    answered = [f"answer to question {n}" for n in range(COUNT)]
    assert all(line in (expected, "failed") for line, expected in zip(lines, answered, strict=True))
    assert len(stored()) == COUNT - lines.count("failed")
