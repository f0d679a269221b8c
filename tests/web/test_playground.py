"""The playground's API: bounded in size and time, and only metrics from its list."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from metrist.web.playground import MAX_CHARACTERS, OFFLINE_METRICS, Playground, offer_metrics
from metrist.web.security import Access
from metrist.web.server import create_app
from web_server import RunningServer, run_server


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    playground = Playground(metrics=offer_metrics(), with_viewer=False)
    with run_server(create_app(playground.routes(), Access())) as running:
        yield running
    playground.close()


def test_offered_metrics_cost_nothing() -> None:
    offered = offer_metrics()
    assert [metric.label for metric in offered] == list(OFFLINE_METRICS)
    assert not any(metric.calls_llm for metric in offered)
    own = offer_metrics(["judge=judge(llm=fake(answers='{\"grade\": 3}'))", "rougeL"])
    assert [metric.label for metric in own][:2] == ["judge", "rougeL"]
    assert own[0].calls_llm
    assert len(own) == len(OFFLINE_METRICS) + 1


def test_an_output_is_scored(server: RunningServer) -> None:
    fields = {"output": "the cat sat", "references": ["the cat sat down", ""], "source": "", "instruction": None}
    answer = server.post("/api/score", {**fields, "metric": "rougeL"}).json()
    assert (answer["value"], answer["failure"]) == (pytest.approx(6 / 7), None)
    assert "needs" in str(server.post("/api/score", {"output": "a", "metric": "chrf"}).json()["failure"])


@pytest.mark.parametrize(
    ("fields", "label", "reason"),
    [
        ({}, "rougeL", "needs references"),
        ({"references": ["a"]}, "rougeL", None),
        ({"source": "a"}, "rougeL", "needs references"),
        ({}, "consistency", "needs a source"),
        ({"source": "a", "instruction": "b"}, "consistency", None),
        ({}, "length", None),
        ({"task": "translation"}, "translation_quality", "there is neither a source nor a reference"),
        ({"source": "ein Haus", "output": "a house"}, "translation_quality", "needs the task translation"),
        ({"source": "ein Haus", "output": "a house", "task": "translation"}, "translation_quality", None),
    ],
)
def test_metrics_that_do_not_fit_have_a_reason(
    server: RunningServer, fields: dict[str, Any], label: str, reason: str | None
) -> None:
    misfits = server.post("/api/misfits", {"output": "a text", **fields}).json()["misfits"]
    assert misfits.get(label) == reason


def test_outputs_in_another_language_are_a_reason(server: RunningServer) -> None:
    german = "Der Zug fährt heute nicht, weil die Strecke nach dem Unwetter der letzten Nacht gesperrt ist."
    misfits = server.post("/api/misfits", {"output": german, "source": german}).json()["misfits"]
    assert {"consistency", "fluency", "likelihood"} <= misfits.keys()
    assert "length" not in misfits


@pytest.mark.parametrize(
    "body",
    [
        *({"metric": "os.system"}, {"metric": "rougeL(stem=True)"}, {"metric": ["rougeL"]}, {"metric": "external"}, {}),
        *({"metric": "rougeL", "output": 3}, {"metric": "rougeL", "references": "text"}, {"metric": "judge"}),
        *({"metric": "rougeL", "references": [1]}, {"metric": "rougeL", "references": ["x"] * 21}),
    ],
)
def test_wrong_requests_are_refused(server: RunningServer, body: Any) -> None:
    assert server.post("/api/score", body).status == 400


def test_long_texts_are_refused(server: RunningServer) -> None:
    assert server.post("/api/score", {"metric": "length", "output": "x" * (MAX_CHARACTERS + 1)}).status == 413
    body = {"metric": "length", "output": "x", "references": ["x" * MAX_CHARACTERS]}
    assert server.post("/api/score", body).status == 413
    assert server.post("/api/score", {"metric": "length", "output": "x" * 8_000_000}).status == 413


@pytest.mark.parametrize("output", ["\x00", "\u202e", "<script>", "\ud800", "\x1b[31m", "a\u0300" * 1000])
def test_hostile_texts_are_scored(server: RunningServer, output: str) -> None:
    answer = server.post("/api/score", {"metric": "length", "output": output}).json()
    assert answer["value"] is not None or answer["failure"]


def test_a_metric_that_takes_too_long_is_stopped(own_metrics: ModuleType) -> None:
    playground = Playground(metrics=offer_metrics([f"{own_metrics.__name__}.Slow", "length"]), time_limit=4)
    with run_server(create_app(playground.routes(), Access())) as server:
        answer = server.post("/api/score", {"metric": f"{own_metrics.__name__}.Slow", "output": "a"}).json()
        assert "stopped after 4 s" in answer["failure"]
        died = server.post("/api/score", {"metric": f"{own_metrics.__name__}.Slow", "output": "die"}).json()
        assert died["failure"]
    playground.close()


@pytest.fixture
def own_metrics(module: Any) -> ModuleType:
    made: ModuleType = module("""
class Slow(Metric):
    def score_record(self, record):
        if record.output == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
        return 1.0
""")
    return made


def test_the_page_is_the_first_where_there_is_no_run(server: RunningServer) -> None:
    assert server.ask("/").text == server.ask("/play").text
    assert server.ask("/api/outputs").status == 404
