"""A run over HTTP that is killed and begun again: what was stored is not sent a second time, and nothing is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from fault_server import FaultServer, Mixed
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
COUNT = 1000


def client(url: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", CLIENT, url, str(COUNT)], stdout=subprocess.PIPE, text=True)


def stored() -> set[str]:
    return {kept.question.messages[-1].text for kept in open_cache().each()} if open_cache().begun else set()


@pytest.mark.skipif(sys.platform == "win32", reason="kills a process by signal")
def test_a_killed_run_sends_only_what_was_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_LLM_CONCURRENCY", "64")
    monkeypatch.setenv("METRIST_LLM_ATTEMPTS", "12")
    with FaultServer(Mixed(seed=5)) as server:
        for wanted in (150, 400):
            run = client(server.url)
            until = time.monotonic() + 60
            while len(stored()) < wanted and time.monotonic() < until:
                time.sleep(0.02)
            run.send_signal(signal.SIGKILL)
            run.communicate(timeout=30)
            kept = stored()
            assert wanted <= len(kept) < COUNT
            # What was on its way when the client died is told apart from what the next one sends.
            time.sleep(0.3)
            sent = len(server.requests)
        out, _ = client(server.url).communicate(timeout=120)
        again = [request.said for request in server.requests[sent:]]
    assert not kept & set(again)
    assert set(again) == {f"question {n}" for n in range(COUNT)} - kept
    lines = out.splitlines()
    assert len(lines) == COUNT
    answered = [f"answer to question {n}" for n in range(COUNT)]
    assert all(line in (wanted, "failed") for line, wanted in zip(lines, answered, strict=True))
    assert len(stored()) == COUNT - lines.count("failed")
