"""Whatever JSON a server sends, it becomes an answer or is said to be none."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrist.llm.http import Response, UnreadableResponse
from metrist.llm.messages import Completion
from metrist.llm.openai_format import parse_chat_completion
from metrist.llm.retry import RequestError, Success, classify_error, parse_error

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
GOOD: dict[str, Any] = {
    "choices": [
        {
            "message": {"role": "assistant", "content": "hello", "refusal": None},
            "finish_reason": "stop",
            "logprobs": {
                "content": [{"token": "hello", "logprob": -0.5, "top_logprobs": [{"token": "a", "logprob": -1}]}]
            },
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2},
}


def places(result: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values inside a JSON value."""
    inner = result.items() if isinstance(result, dict) else enumerate(result) if isinstance(result, list) else ()
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


def with_changed(result: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = dict(result) if isinstance(result, dict) else list(result)
    changed[path[0]] = with_changed(result[path[0]], path[1:], value)
    return changed


@given(st.sampled_from(places(GOOD)), JSON)
def test_an_answer_with_anything_anywhere_is_read_or_called_unreadable(path: tuple[Any, ...], value: Any) -> None:
    try:
        result = parse_chat_completion(Response(200, {}, json.dumps(with_changed(GOOD, path, value)).encode()).data)
    except UnreadableResponse:
        return
    assert isinstance(result, Completion)
    assert isinstance(result.text, str)
    result.text.encode()  # No half characters.
    assert result.usage.prompt_tokens is None or result.usage.prompt_tokens >= 0


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_are_no_surprise(body: bytes) -> None:
    with contextlib.suppress(UnreadableResponse):
        parse_chat_completion(Response(200, {}, body).data)
    assert parse_error(Response(400, {}, body)).message


@given(JSON, st.integers(300, 599))
def test_errors_of_any_form_get_a_verdict_in_one_line(body: Any, status: int) -> None:
    verdict = classify_error(Response(status, {}, json.dumps(body).encode()), "m", ["temperature", "seed"])
    assert not isinstance(verdict, Success)
    reason = verdict.failure if isinstance(verdict, RequestError) else verdict.reason
    assert f"the server answered {status}: " in reason
    assert "\n" not in reason
    assert len(reason) < 600


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no", "code": 3, "param": "seed"}}', "no"),
        (b'{"error": "no"}', "no"),
        (b'[{"error": {"message": "no"}}]', "no"),
        (b'{"detail": "no"}', "no"),
        (b'{"object": "error", "message": "no"}', "no"),
        (b" no\n", "no"),
        (b"", "no message"),
        (b"x" * 1000, "x" * 300 + "…"),
    ],
)
def test_what_servers_complain_of_is_found_in_all_their_forms(body: bytes, message: str) -> None:
    assert parse_error(Response(400, {}, body)).message == message
