"""A real server, `transformers serve`, with a tiny model made on the spot: it answers, and it is found out that it
holds to no schema and gives no log-probabilities, both of which it ignores without a word."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from error_codes import raises_code
from metrist.errors import ModelError
from metrist.llm.messages import Completion, Message, Sampling
from metrist.llm.openai import OpenAI
from metrist.models.local_llm import Transformers

TEMPLATE = "{% for message in messages %}{{ message['role'] }} : {{ message['content'] }} {% endfor %}"
SCHEMA = {"type": "object", "properties": {"grade": {"type": "integer"}}, "required": ["grade"]}
PATIENCE = 300


@pytest.fixture(scope="module")
def served(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The server's address and its model's name."""
    folder = tmp_path_factory.mktemp("served")
    for file in tiny("llama").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).parent / "transformers"), "serve", str(folder), "--host", "127.0.0.1"]
    log = folder / "log.txt"
    with log.open("wb") as out:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        process = subprocess.Popen(
            [*command, "--port", str(port), "--device", "cpu"], stdout=out, stderr=out, env=environment
        )
        try:
            _wait_for(f"http://127.0.0.1:{port}/health", process, log)
            yield f"http://127.0.0.1:{port}/v1", str(folder)
        finally:
            process.terminate()
            process.wait(timeout=120)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"transformers serve did not start: {log.read_text(errors='replace')[-2000:]}")


def _ask(url: str, model: str, sampling: Sampling) -> list[Completion]:
    texts = ("the old cat sat on the mat", "it is a good report", "the old cat sat on the mat")
    return OpenAI(model=model, url=url).complete(
        [(Message("system", "the president said"), Message("user", text)) for text in texts], sampling
    )


def test_a_real_server_answers_and_what_it_cannot_do_is_found_out(served: tuple[str, str]) -> None:
    result = _ask(*served, Sampling(max_tokens=12, schema=SCHEMA, logprobs=3))
    assert [completion.failure for completion in result] == [None] * 3
    assert result[0].text == result[2].text != result[1].text
    assert all(completion.text for completion in result)
    for completion in result:
        assert (completion.structured, completion.tokens) == (False, None)
        assert (completion.finish, completion.usage.completion_tokens) == ("length", 12)
        assert (completion.usage.prompt_tokens or 0) > 8


def test_a_real_server_is_given_the_words_as_they_are(served: tuple[str, str]) -> None:
    """It must say what the same model says in this process, which reads the words alone too."""
    url, model = served
    texts = [(Message("system", "the president said"), Message("user", "it is a good report"))]
    sampling = Sampling(max_tokens=12)
    (result,) = OpenAI(model=model, url=url, turns="none").complete(texts, sampling)
    (own,) = Transformers(model=model, turns="none").complete(texts, sampling)
    assert (result.text, result.finish) == (own.text, own.finish)
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (own.usage.prompt_tokens, 12)
    (chatted,) = OpenAI(model=model, url=url).complete(texts, sampling)
    assert chatted.usage.prompt_tokens != result.usage.prompt_tokens


def test_a_model_that_a_real_server_does_not_have_is_said(served: tuple[str, str]) -> None:
    url, _ = served
    with raises_code(ModelError, "model_unusable", "'no/such-model'", "model=…"):
        _ask(url, "no/such-model", Sampling(max_tokens=4))
