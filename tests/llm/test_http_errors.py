"""Servers that cannot be reached from here, by stand-ins that answer in their documented forms; and the page that names
them says nothing that cannot be built."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from error_codes import raises_code
from fault_server import CLOSED, Act, FaultServer, answer, error, status
from metrist.errors import ModelError
from metrist.llm import gateway
from metrist.llm.base import build_llm
from metrist.llm.messages import Completion, Message, Sampling
from metrist.llm.openai import OpenAI
from metrist.runtime import Runtime
from metrist.scores import FailureKind

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "llm.md"


def ask(act: Act) -> Completion:
    with FaultServer(lambda request: answer("hello") if request.prompt == "good" else act) as server:
        conversations = [(Message("user", text),) for text in ("good", "bad")]
        llm = OpenAI(model="m", url=server.url)
        llm.complete(conversations[:1], Sampling())
        return llm.complete(conversations[1:], Sampling())[0]


def test_every_text_on_the_page_can_be_built() -> None:
    texts = re.findall(r"`(openai\(model=.*?\))`", PAGE.read_text(encoding="utf-8"))
    full = [text for text in texts if "=…" not in text]
    assert len(full) >= 9
    for text in full:
        assert str(build_llm(text)) == text


OPENAI_TOO_LONG = error(
    400,
    "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.",
    type="invalid_request_error",
    param="messages",
    code="context_length_exceeded",
)
VLLM_TOO_LONG = status(
    400,
    {
        "object": "error",
        "message": "'max_tokens' or 'max_completion_tokens' is too large: 1024. This model's maximum context length is "
        "2048 tokens and your request has 2000 input tokens",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    },
)
LLAMA_CPP_TOO_LONG = error(
    400,
    "the request exceeds the available context size, try increasing it",
    type="exceed_context_size_error",
    code=400,
    n_prompt_tokens=5000,
    n_ctx=4096,
)
ANTHROPIC_TOO_LONG = error(400, "prompt is too long: 210000 tokens > 200000 maximum", type="invalid_request_error")
GEMINI_TOO_LONG = status(
    400,
    [
        {
            "error": {
                "code": 400,
                "message": "The input token count (2000000) exceeds the maximum number of tokens allowed (1048576).",
                "status": "INVALID_ARGUMENT",
            }
        }
    ],
)


@pytest.mark.parametrize(
    "act", [OPENAI_TOO_LONG, VLLM_TOO_LONG, LLAMA_CPP_TOO_LONG, ANTHROPIC_TOO_LONG, GEMINI_TOO_LONG]
)
def test_a_text_too_long_for_the_context_is_known_in_every_form(act: Act) -> None:
    result = ask(act)
    assert result.finish == "length"
    assert str(result.failure).startswith("too long for the model's context: the server answered 400: ")


def test_azures_content_filter_is_known_before_and_after_the_answer() -> None:
    said = "The response was filtered due to the prompt triggering Azure OpenAI's content management policy."
    before = ask(error(400, said, type=None, param="prompt", code="content_filter", status=400))
    assert (before.finish, before.failure) == ("filter", f"the server answered 400: {said}")
    after = ask(answer("", finish="content_filter"))
    assert (after.finish, after.text, after.failure) == ("filter", "", None)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (error(404, "The model `m` does not exist", code="model_not_found"), "The model `m` does not exist"),
        (status(404, {"error": {"message": "model 'm' not found", "type": "api_error"}}), "model 'm' not found"),
        (status(404, {"object": "error", "message": "The model `m` does not exist.", "code": 404}), "does not exist"),
        (status(404, {"error": {"code": "DeploymentNotFound", "message": "no such deployment"}}), "no such deployment"),
        (status(404, [{"error": {"code": 404, "message": "models/m is not found"}}]), "models/m is not found"),
        (status(404, {"detail": "Not Found"}), "Not Found"),
        (error(401, "Incorrect API key provided: sk-ab***yz.", code="invalid_api_key"), "Incorrect API key provided"),
        (error(401, "invalid x-api-key", type="authentication_error"), "invalid x-api-key"),
        (error(429, "You exceeded your current quota, please check your plan", code="insufficient_quota"), "quota"),
        (error(400, "Your credit balance is too low to access the API"), "credit balance is too low"),
    ],
)
def test_a_wrong_model_key_or_account_is_known_in_every_form(act: Act, said: str) -> None:
    with FaultServer(lambda _: act) as server, raises_code(ModelError, "model_unusable", said):
        OpenAI(model="m", url=server.url).complete([(Message("user", "hello"),)], Sampling())


@pytest.mark.parametrize(
    ("act", "field"),
    [
        (
            error(
                400,
                "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is "
                "supported.",
                param="temperature",
                code="unsupported_value",
            ),
            "temperature",
        ),
        (error(400, "`temperature` and `top_p` cannot both be specified for this model."), "top_p"),
        (
            status(422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "not permitted"}]}),
            "seed",
        ),
    ],
)
def test_a_refused_field_is_named_with_what_to_write(act: Act, field: str) -> None:
    with FaultServer(lambda _: act) as server, raises_code(ModelError, "model_unusable", f"omit=['{field}']"):
        OpenAI(model="m", url=server.url).complete([(Message("user", "hello"),)], Sampling(temperature=0.5))


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (CLOSED, FailureKind.transient),
        (error(500, "oops"), FailureKind.transient),
        (error(429, "slow down"), FailureKind.transient),
        (status(200, b"{"), FailureKind.transient),
        (answer(None), FailureKind.transient),
        (error(400, "I do not like this text"), FailureKind.refused),
        (error(400, "the prompt exceeds the maximum context length"), FailureKind.too_long),
        (answer(None, finish="length"), FailureKind.too_long),
        (error(400, "flagged by the content filter"), FailureKind.filtered),
        (error(403, "content policy"), FailureKind.filtered),
        (answer(None, finish="content_filter"), FailureKind.filtered),
    ],
)
def test_every_failure_has_its_kind(act: Act, kind: FailureKind) -> None:
    runtime = Runtime(attempts=1, max_wait=0.001)
    with FaultServer(lambda request: answer("fine") if request.prompt == "good" else act) as server:
        llm = OpenAI(model="m", url=server.url)
        good, bad = (gateway.complete(llm, [text], runtime=runtime)[0] for text in ("good", "bad"))
    assert good.failure is None
    assert bad.failure is not None
    assert bad.failure.kind is kind
