"""The service, called without a socket. Expected scores come from metrist.score, prefer and compare."""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import metrist
from asgi_calls import Reply, call
from fault_server import FaultServer, error
from metrist.web.service import models
from metrist.web.service.app import Service
from metrist.web.service.catalog import build_catalog
from metrist.web.service.guards import ScoringTime
from metrist.web.service.settings import AccessTokens, Check, ServiceSettings
from metrist.web.service.telemetry import Log, Tracing
from service_metrics import GATE, Timed

TOKEN = "a-token-of-24-characters"
LEXICAL = ("rougeL", "chrf(word_order=2)", "length")
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "looked", "at", "birds", "while", "rain", "fell"]


def texts(number: int) -> dict[str, Any]:
    """A record that differs from those of other numbers."""
    rng = np.random.default_rng(number)
    output, reference = (" ".join(rng.choice(WORDS, 3 + number % 9)) for _ in range(2))
    return {"output": output, "references": [reference]}


@contextmanager
def serving(
    *metrics: str, log: io.BytesIO | None = None, tracing: Tracing | None = None, **settings: Any
) -> Iterator[Service]:
    chosen = ServiceSettings(**{"log": "requests" if log else "off", **settings})
    service = Service(build_catalog(metrics or LEXICAL), chosen, log=Log(chosen.log, log), tracing=tracing)
    GATE.clear()
    try:
        yield service
    finally:
        GATE.set()
        service.close()


def ask(service: Service, path: str, body: Any = None, **options: Any) -> Reply:
    return asyncio.run(call(service, path, body, **options))


# ---- Numbers


def test_scores_are_those_of_metrist_score() -> None:
    bodies = [texts(n) for n in range(40)]
    expected = metrist.score(bodies, LEXICAL)
    with serving() as service:
        answer = ask(service, "/v1/score", {"records": bodies, "details": True})
    assert answer.status == 200
    models.ScoreResponse.model_validate(answer.json())
    for i, row in enumerate(answer.json()["results"]):
        assert row["item"] == str(i + 1)
        for metric in LEXICAL:
            score = expected[metric][i]
            assert row["scores"][metric]["value"] == score.value
            assert row["scores"][metric].get("parts", {}) == dict(score.parts)


def test_concurrent_requests_share_batches_and_get_their_own_answers() -> None:
    numbers = range(300)
    expected = metrist.score([texts(n) for n in numbers], ["rougeL"])["rougeL"].values

    async def send_all(service: Service) -> list[Reply]:
        body = {"metrics": ["rougeL"]}
        return list(
            await asyncio.gather(*(call(service, "/v1/score", {**body, "records": [texts(n)]}) for n in numbers))
        )

    with serving() as service:
        replies = asyncio.run(send_all(service))
        counts = service.counters.render().decode()
    assert [reply.json()["results"][0]["scores"]["rougeL"]["value"] for reply in replies] == expected.tolist()
    batches = float(counts.split('metrist_batch_records_count{lane="text"} ')[1].split()[0])
    assert batches < 30
    assert 'metrist_queue_records{lane="text"} 0.0\n' in counts


def test_a_large_request_is_cut_into_batches_and_streamed_in_order() -> None:
    bodies = [texts(n) for n in range(1000)]
    expected = metrist.score(bodies, ["rougeL"])["rougeL"].values
    with serving(batch_records=64) as service:
        whole = ask(service, "/v1/score", {"records": bodies, "metrics": ["rougeL"]})
        answer = ask(service, "/v1/score", {"records": bodies, "metrics": ["rougeL"], "stream": True})
    *rows, last = answer.lines()
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert len(answer.pieces) > 15
    assert last == {"done": True, "count": 1000}
    assert rows == whole.json()["results"]
    assert [row["scores"]["rougeL"]["value"] for row in rows] == expected.tolist()


def test_a_metric_without_what_it_needs_gives_a_failure() -> None:
    with serving() as service:
        answer = ask(service, "/v1/score", {"records": [{"output": "a"}, texts(1)], "metrics": ["rougeL"]}).json()
    first, second = (row["scores"]["rougeL"] for row in answer["results"])
    assert first["value"] is None
    assert first["failure"]["kind"] == "missing_input"
    assert second["value"] is not None


def test_prefer_is_that_of_metrist_prefer() -> None:
    pairs = [{"first": texts(n)["output"], "second": texts(n + 50)["output"], **texts(n)} for n in range(20)]
    for pair in pairs:
        del pair["output"]
    rows = [
        {"item": str(n), "system": side, "output": pair[side], "references": pair["references"]}
        for n, pair in enumerate(pairs)
        for side in ("first", "second")
    ]
    (judgments,) = metrist.prefer(rows, ["rougeL"]).judgments.values()
    expected = [judgment.preference for judgment in judgments]
    with serving() as service:
        answer = ask(service, "/v1/prefer", {"pairs": pairs})
    models.PreferResponse.model_validate(answer.json())
    assert [row["judgments"]["rougeL"]["preference"] for row in answer.json()["results"]] == expected
    assert len(set(expected)) > 1
    assert list(answer.json()["results"][0]["judgments"]) == ["rougeL", "chrf(word_order=2)"]


def test_compare_is_that_of_metrist_compare() -> None:
    rows = [{**texts(n + 100 * s), "system": f"s{s}", "item": str(n)} for s in range(3) for n in range(30)]
    expected = metrist.compare(metrist.score(rows, ["rougeL"]), draws=200, seed=3, baseline="s0").to_dict()
    body = {"records": rows, "metrics": ["rougeL"], "draws": 200, "seed": 3, "baseline": "s0"}
    with serving() as service:
        answer = ask(service, "/v1/compare", body)
        one_system = ask(service, "/v1/compare", {"records": rows[:30]})
        twice = ask(service, "/v1/compare", {"records": [*rows, rows[31]]})
        unknown = ask(service, "/v1/compare", {**body, "baseline": "s9"})
    models.ServedComparison.model_validate(answer.json())
    assert answer.json() == expected
    assert (one_system.status, twice.status, unknown.status) == (422, 422, 422)
    assert twice.json()["error"]["field"] == "records[90]"
    assert unknown.code == "not_comparable"


def test_rerank_is_that_of_metrist_rerank() -> None:
    rows = [{**texts(n + 100 * s), "system": f"s{s}", "item": f"i{n}"} for s in range(4) for n in range(5)]
    options: dict[str, Any] = {"mbr": ["rougeL"], "comparators": ["chrf++"], "weights": {"rougeL": 0.3}, "k": 2}
    expected = metrist.rerank(rows, executor="serial", **{**options, "comparators": ["chrf(word_order=2)"]})
    with serving() as service:
        answer = ask(service, "/v1/rerank", {"records": rows, **options})
        mean = ask(service, "/v1/rerank", {"records": [texts(1), texts(101)], "metrics": ["rougeL"]})
        unscored = ask(service, "/v1/rerank", {"records": [{"output": "a"}], "metrics": ["rougeL"]})
        nothing = ask(service, "/v1/rerank", {"records": rows})
        weight = ask(service, "/v1/rerank", {"records": rows, "mbr": ["rougeL"], "weights": {"chrf": 1}})
        many = ask(service, "/v1/rerank", {"records": [{"output": str(n)} for n in range(101)], "mbr": ["rougeL"]})
    results = models.RerankResponse.model_validate(answer.json()).results
    assert [item.item for item in results] == [f"i{n}" for n in range(5)]
    choices = [choice for item in results for choice in item.choices]
    assert [rows[choice.record]["output"] for choice in choices] == [each.record.output for each in expected]
    for choice, each in zip(choices, expected, strict=True):
        assert (choice.system, choice.rank, choice.scores) == (each.record.system, each.rank, each.scores)
        assert (choice.score, choice.lead) == (each.score, each.lead)
    (item,) = mean.json()["results"]
    assert (item["item"], item["of"], len(item["choices"])) == ("1", 2, 1)
    (item,) = unscored.json()["results"]
    assert (item["choices"], item["failure"]["kind"]) == ([], "missing_input")
    assert (nothing.status, weight.status, many.status) == (422, 422, 413)
    assert weight.json()["error"]["field"] == "weights"


def test_the_guide_shows_what_the_service_answers() -> None:
    """Each request by curl in docs/guides/serve.md, with the JSON below it, in which … stands for any text."""
    guide = (Path(__file__).parents[3] / "docs/guides/serve.md").read_text(encoding="utf-8")
    calls = re.findall(r"^curl localhost:8600(\S+) .*? -d '(.*?)'\n```\n(.*?)^```json\n(.*?)\n```", guide, re.M | re.S)
    assert [path for path, *_ in calls] == ["/v1/score", "/v1/prefer", "/v1/compare", "/v1/rerank"]
    with serving() as service:
        for path, body, _, shown in calls:
            answer = ask(service, path, json.loads(body)).body.decode()
            assert re.fullmatch(re.escape(shown).replace("…", ".*"), answer), f"{path} answers\n{answer}"


def test_explain_gives_errors_and_reasons() -> None:
    body = {"records": [{"output": "a bad word"}, {"output": "fine"}, {"output": ""}]}
    with serving("rougeL", "service_metrics.Marking") as service:
        answer = ask(service, "/v1/explain", body)
        refused = ask(service, "/v1/explain", {**body, "metric": "rougeL"})
    models.ExplainResponse.model_validate(answer.json())
    first, second, third = (row["score"] for row in answer.json()["results"])
    assert (first["errors"][0]["start"], first["errors"][0]["end"], first["explanation"]) == (2, 5, "a bad word")
    assert second["errors"] == []
    assert third["failure"]["kind"] == "not_scored"
    assert refused.code == "unsuitable_metric"


# ---- Guards


def test_a_guard_passes_or_fails_with_reasons() -> None:
    checks = (Check.parse("length<=5"), Check(metric="service_metrics.Marking", minimum=0.5))
    with serving("length", "service_metrics.Marking", checks=checks) as service:
        good = ask(service, "/v1/guard", {"record": {"output": "all is well"}})
        bad = ask(service, "/v1/guard", {"record": {"output": "a bad word"}})
        long = ask(service, "/v1/guard", {"record": {"output": "one two three four five six"}})
        own = ask(service, "/v1/guard", {"record": {"output": "one two"}, "checks": [{"metric": "length", "max": 1}]})
    for answer in (good, bad, long, own):
        models.GuardVerdict.model_validate(answer.json())
    assert (good.json()["verdict"], good.json()["reasons"], good.json()["decided_by"]) == ("pass", [], "checks")
    assert bad.json()["verdict"] == "fail"
    assert bad.json()["reasons"] == ["service_metrics.Marking is 0, below 0.5"]
    assert bad.json()["checks"][1]["errors"][0]["text"] == "bad"
    assert long.json()["reasons"] == ["length is 6, above 5"]
    assert own.json()["reasons"] == ["length is 2, above 1"]


@pytest.mark.parametrize(("policy", "verdict"), [("open", "pass"), ("closed", "fail")])
def test_the_policy_decides_where_the_budget_is_missed(policy: str, verdict: str) -> None:
    body = {"record": {"output": "word"}, "budget_ms": 30, "policy": policy}
    with serving("length", "service_metrics.Waiting", checks=(Check.parse("service_metrics.Waiting>=1"),)) as service:
        answer = ask(service, "/v1/guard", body).json()
        both = [{"metric": "length", "max": 0}, {"metric": "service_metrics.Waiting", "min": 0}]
        failed = ask(service, "/v1/guard", {**body, "budget_ms": 20_000, "checks": both}).json()
        counts = service.counters.render().decode()
    assert (answer["verdict"], answer["decided_by"], answer["policy"]) == (verdict, "policy", policy)
    assert answer["checks"][0]["result"] == "late"
    assert "30 ms" in answer["reasons"][0]
    # A check that fails decides at once, without waiting for the others.
    assert (failed["verdict"], failed["decided_by"]) == ("fail", "checks")
    assert [check["result"] for check in failed["checks"]] == ["fail", "skipped"]
    assert f'metrist_guard_total{{decided_by="policy",verdict="{verdict}"}} 1.0\n' in counts


def test_a_check_without_a_score_is_left_to_the_policy() -> None:
    checks = [{"metric": "service_metrics.Breaking", "min": 0}, {"metric": "rougeL", "min": 0}]
    with serving("rougeL", "service_metrics.Breaking") as service:
        answer = ask(service, "/v1/guard", {"record": {"output": "break"}, "checks": checks, "policy": "open"}).json()
        none = ask(service, "/v1/guard", {"record": {"output": "a"}})
        empty = ask(service, "/v1/guard", {"record": {"output": "a"}, "checks": [{"metric": "rougeL"}]})
    assert [check["result"] for check in answer["checks"]] == ["unscored", "unscored"]
    assert answer["decided_by"] == "policy"
    assert (none.code, empty.status) == ("no_checks", 422)


def test_what_metrics_take_decides_the_budget_and_which_texts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Timed` takes 0.1 ms per character, so 4,000 characters take 400 ms, which is half of 800 ms."""
    clock = SimpleNamespace(perf_counter=lambda: Timed.now, monotonic=time.monotonic)
    monkeypatch.setattr("metrist.web.service.guards.time", clock)
    checks = (Check.parse("service_metrics.Timed>=0"),)
    log = io.BytesIO()
    for given, budget, fits in ((None, 800.0, 4000), (0.2, 200.0, 1000)):
        with serving("length", "service_metrics.Timed", checks=checks, guard_budget=given, log=log) as service:
            asyncio.run(service._warm())
            served = ask(service, "/v1/metrics").json()["guard"]
            records = [{"output": "a" * 100, "source": "b" * (fits - 100 + more)} for more in (-50, 50)]
            before = Timed.now
            inside, outside = (ask(service, "/v1/guard", {"record": record}).json() for record in records)
            both = [{"metric": "length", "max": 0}, {"metric": "service_metrics.Timed", "min": 0}]
            failed = ask(service, "/v1/guard", {"record": records[1], "checks": both}).json()
        assert served["budget_ms"] == inside["budget_ms"] == budget
        assert served["characters"]["service_metrics.Timed"] == pytest.approx(fits, abs=2)
        assert (inside["verdict"], inside["checks"][0]["result"]) == ("pass", "pass")
        assert (outside["verdict"], outside["decided_by"]) == ("fail", "policy")
        assert outside["checks"][0]["result"] == "too_long"
        assert outside["checks"][0]["needed_ms"] == pytest.approx((fits + 50) / 10, abs=1)
        assert Timed.now == pytest.approx(before + (fits - 50) / 10_000)  # It was not asked a second time.
        assert [check["result"] for check in failed["checks"]] == ["fail", "skipped"]
        models.GuardVerdict.model_validate(outside)
    (said, _) = (json.loads(line) for line in log.getvalue().splitlines() if b'"event":"guard"' in line)
    assert said["budget_ms"] == 800.0
    assert set(said["characters"]) == {"length", "service_metrics.Timed"}


def test_an_ordinary_text_fits_where_a_request_names_its_own_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, without `--guard`: 3,200 characters take 320 ms of `Timed`."""
    clock = SimpleNamespace(perf_counter=lambda: Timed.now, monotonic=time.monotonic)
    monkeypatch.setattr("metrist.web.service.guards.time", clock)
    record = {"output": "a" * 640, "source": "b" * 2560}
    checks = {name: {"metric": name, "min": 0} for name in ("length", "service_metrics.Timed")}
    with serving(*checks, checks=(Check.parse("length>=0"),)) as service:
        asyncio.run(service._warm())
        own = ask(service, "/v1/guard", {"record": record}).json()
        timed = ask(service, "/v1/guard", {"record": record, "checks": list(checks.values())}).json()
        short = ask(service, "/v1/guard", {"record": record, "checks": list(checks.values()), "budget_ms": 300}).json()
    assert (own["budget_ms"], own["verdict"]) == (300.0, "pass")
    assert (timed["budget_ms"], timed["verdict"]) == (pytest.approx(850, abs=60), "pass")
    assert [check["result"] for check in short["checks"]] == ["pass", "too_long"]


def test_a_shorter_text_takes_no_longer_than_a_longer_one() -> None:
    known = ScoringTime([1000, 2000, 4000], [0.9, 0.2, 0.5])
    assert [known.estimate(n) for n in (0, 500, 1000, 2000, 3000, 8000)] == pytest.approx([0, 0.1, 0.2, 0.2, 0.35, 1.0])
    assert [known.fit(seconds) for seconds in (0.1, 0.35, 1.0)] == [500, 3000, 8000]


def test_a_guard_does_not_wait_for_another_request() -> None:
    async def ask_both(service: Service) -> tuple[dict[str, Any], Reply]:
        body = {"records": [{"output": "long"}], "metrics": ["service_metrics.Held"]}
        score = asyncio.create_task(call(service, "/v1/score", body))
        await asyncio.sleep(0.1)
        guard = {"record": {"output": "short"}, "checks": [{"metric": "service_metrics.Held", "min": 1}]}
        verdict = (await call(service, "/v1/guard", {**guard, "budget_ms": 5000})).json()
        assert not score.done()
        GATE.set()
        return verdict, await score

    with serving("service_metrics.Held") as service:
        verdict, scored = asyncio.run(ask_both(service))
    assert (verdict["verdict"], verdict["decided_by"]) == ("pass", "checks")
    assert scored.json()["results"][0]["scores"]["service_metrics.Held"]["value"] == 4


# ---- Requests that are refused


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "field"),
    [
        ("/v1/score", b'{"records":', 400, "invalid_json", None),
        ("/v1/score", b'{"records":[{"output":"\\ud800"}]}', 400, "invalid_json", None),
        ("/v1/score", b"[" * 100_000, 400, "invalid_json", None),
        ("/v1/score", b"\xff\xfe", 400, "invalid_json", None),
        ("/v1/score", {"records": []}, 422, "invalid_request", "records"),
        ("/v1/score", {"records": [{"output": 3}]}, 422, "invalid_request", "records[0].output"),
        ("/v1/score", {"records": [{"output": "a", "refs": []}]}, 422, "invalid_request", "records[0].refs"),
        ("/v1/score", {"records": [texts(1)], "metrics": ["bleu"]}, 422, "unknown_metric", "metrics[0]"),
        ("/v1/compare", {"records": [texts(1)], "draws": 500_000}, 422, "invalid_request", "draws"),
        ("/v1/guard", {"record": texts(1), "budget_ms": 1e400}, 422, "invalid_request", "budget_ms"),
        ("/v1/nothing", {"records": []}, 404, "not_found", None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_requests(path: str, body: Any, status: int, code: str, field: str | None) -> None:
    with serving() as service:
        answer = ask(service, path, body)
    models.ErrorResponse.model_validate(answer.json())
    assert (answer.status, answer.code, answer.json()["error"].get("field")) == (status, code, field)
    assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"]


def test_an_unknown_field_is_answered_with_where_to_find_the_known_ones() -> None:
    with serving() as service:
        answer = ask(service, "/v1/score", {"records": [{"output": "a", "doc": "b"}]})
    assert "records[0].doc" in answer.json()["error"]["message"]
    assert "/openapi.json" in answer.json()["error"]["message"]


def test_only_metrics_of_the_operator_can_be_used_and_nothing_is_imported() -> None:
    names = ["antigravity.fly", "this.s", "external(command='touch /tmp/x')", "__import__('os')", "chrf(word_order=3)"]
    with serving() as service:
        for name in names:
            answer = ask(service, "/v1/score", {"records": [texts(1)], "metrics": [name]})
            assert (answer.status, answer.code) == (422, "unknown_metric"), name
        spaced = ask(service, "/v1/score", {"records": [texts(1)], "metrics": ["chrf( word_order = 2 )", "chrf++"]})
    assert list(spaced.json()["results"][0]["scores"]) == ["chrf(word_order=2)"]
    assert not {"antigravity", "this"} & sys.modules.keys()


def test_methods_and_media_types() -> None:
    with serving() as service:
        wrong = ask(service, "/v1/score", method="GET")
        plain = ask(service, "/v1/score", {}, headers={"content-type": "text/plain"})
        packed = ask(service, "/v1/score", {}, headers={"content-encoding": "gzip"})
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    assert (plain.status, packed.status) == (415, 415)


def test_a_record_that_breaks_a_metric_does_not_spoil_the_answers_to_others() -> None:
    async def send_all(service: Service) -> list[Reply]:
        outputs = ["one", "break", "three", "four"]
        return list(await asyncio.gather(*(call(service, "/v1/score", {"records": [{"output": o}]}) for o in outputs)))

    log = io.BytesIO()
    with serving("service_metrics.Breaking", log=log) as service:
        replies = asyncio.run(send_all(service))
    assert [reply.status for reply in replies] == [200, 502, 200, 200]
    scores = [reply.json()["results"][0]["scores"] for reply in replies if reply.status == 200]
    assert [score["service_metrics.Breaking"]["value"] for score in scores] == [3, 5, 4]
    assert b"secret words" not in log.getvalue() + replies[1].body


def test_what_a_metric_says_is_in_the_log_and_not_in_the_answer() -> None:
    """Its message may quote a server, such as the address with a key that a redirect names."""
    metric = "service_metrics.Redirected"
    record = {"output": "a"}
    log = io.BytesIO()
    with serving(metric, log=log) as service:
        replies = [
            ask(service, "/v1/score", {"records": [record]}),
            ask(service, "/v1/score", {"records": [record], "stream": True}),
            ask(service, "/v1/guard", {"record": record, "checks": [{"metric": metric, "min": 0}], "budget_ms": 9000}),
        ]
    faults = {line["id"]: line["reason"] for line in map(json.loads, log.getvalue().splitlines()) if "reason" in line}
    assert [reply.status for reply in replies] == [502, 502, 200]
    assert "model_unusable" in replies[0].json()["error"]["message"]
    for reply in replies:
        assert b"redirects" not in reply.body
        assert b"secret" not in reply.body
        assert "it redirects" in faults[reply.headers["x-request-id"]]


def test_what_an_llm_server_says_is_in_the_log_once_and_not_in_the_answer() -> None:
    log = io.BytesIO()
    with FaultServer(lambda _: error(400, "tenant 7 may not ask about 'secret words'")) as server:
        judge = f"judge(llm=openai(model='m', url='{server.url}'))"
        with serving(judge, log=log) as service:
            pair = {"first": "a", "second": "b", "source": "c"}
            check = {"metric": judge, "min": 0}
            replies = [
                ask(service, "/v1/score", {"records": [{"output": "a"}, {"output": "b"}], "metrics": [judge]}),
                ask(service, "/v1/prefer", {"pairs": [pair], "metrics": [judge]}),
                ask(service, "/v1/guard", {"record": {"output": "d"}, "checks": [check], "budget_ms": 20_000}),
            ]
    events = [line for line in map(json.loads, log.getvalue().splitlines()) if line["event"] == "unscored"]
    (score, _), (judgment,), (guard,) = (
        reply.json()["checks" if "checks" in reply.json() else "results"] for reply in replies
    )
    for failed in (*score["scores"].values(), *judgment["judgments"].values(), guard):
        assert failed["failure"] == {"kind": "refused", "message": "no score (refused); the service's log says more"}
    assert not any(b"tenant" in reply.body or b"secret" in reply.body for reply in replies)
    assert [event["id"] for event in events] == [reply.headers["x-request-id"] for reply in replies]
    assert all("tenant 7" in event["reason"] and event["kind"] == "refused" for event in events)


# ---- Limits


def test_limits_on_size() -> None:
    with serving(max_body=2000, max_records=3, max_characters=100) as service:
        long = {"records": [{"output": "x" * 3000}]}
        large = ask(service, "/v1/score", long)
        endless = ask(service, "/v1/score", pieces=[b"[" * 1500, b"[" * 1500, b""])
        many = ask(service, "/v1/score", {"records": [{"output": "a"}] * 4})
        record_too_large = ask(service, "/v1/score", {"records": [{"output": "a", "references": ["x" * 60] * 2}]})
        number = ask(service, "/v1/score", {}, headers={"content-length": "-1"})
    assert {answer.status for answer in (large, endless, many, record_too_large)} == {413}
    assert (large.code, endless.code) == ("too_large", "too_large")
    assert (many.code, record_too_large.code, number.status) == ("too_many_records", "record_too_large", 400)


def test_a_full_queue_answers_429_and_loses_nothing() -> None:
    body = {"metrics": ["service_metrics.Waiting"]}

    async def overload(service: Service) -> list[Reply]:
        async def send(number: int) -> Reply:
            return await call(service, "/v1/score", {**body, "records": [{"output": "x" * number}]})

        waiting = [asyncio.create_task(send(number)) for number in range(1, 31)]
        await asyncio.sleep(0.1)
        GATE.set()
        return list(await asyncio.gather(*waiting))

    with serving("service_metrics.Waiting", max_queue=8) as service:
        replies = asyncio.run(overload(service))
        counts = service.counters.render().decode()
    accepted = {number: reply for number, reply in enumerate(replies, 1) if reply.status == 200}
    refused = [reply for reply in replies if reply.status == 429]
    assert (len(accepted), len(refused)) == (8, 22)
    for number, reply in accepted.items():
        assert reply.json()["results"][0]["scores"]["service_metrics.Waiting"]["value"] == number
    assert all(reply.code == "queue_full" and int(reply.headers["retry-after"]) >= 1 for reply in refused)
    assert 'metrist_requests_total{endpoint="/v1/score",status="429"} 22.0\n' in counts
    assert "metrist_requests_in_progress 0.0\n" in counts


def test_limits_on_requests_in_progress_and_on_bytes() -> None:
    async def overload(service: Service) -> list[int]:
        body = {"records": [{"output": "x" * 1000}]}
        waiting = [asyncio.create_task(call(service, "/v1/score", body)) for _ in range(5)]
        await asyncio.sleep(0.05)
        GATE.set()
        return sorted(reply.status for reply in await asyncio.gather(*waiting))

    with serving("service_metrics.Waiting", max_requests=3) as service:
        assert asyncio.run(overload(service)) == [200, 200, 200, 429, 429]
    with serving("service_metrics.Waiting", max_pending_bytes=2500) as service:
        assert asyncio.run(overload(service)) == [200, 200, 429, 429, 429]


def test_time_limits() -> None:
    with serving("service_metrics.Waiting", time_limit=0.05) as service:
        late = ask(service, "/v1/score", {"records": [{"output": "a"}]})
        slow = ask(service, "/v1/score", pieces=[b"["])
    assert (late.status, late.code) == (504, "timeout")
    assert (slow.status, slow.code) == (408, "timeout")
    assert slow.headers["connection"] == "close"


def test_a_client_that_does_not_read_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrist.web.service.app._LAST_LINE_SECONDS", 0.05)
    body = {"records": [texts(n) for n in range(5)], "stream": True}
    with serving(time_limit=0.2, max_queue=5) as service:
        with pytest.raises(TimeoutError):
            ask(service, "/v1/score", body, reads=False)
        assert ask(service, "/v1/score", body).status == 200


def test_an_error_within_a_stream_is_its_last_line() -> None:
    outputs = [{"output": "a"}, {"output": "b"}, {"output": "break"}]
    with serving("service_metrics.Breaking", batch_records=1) as service:
        answer = ask(service, "/v1/score", {"records": outputs, "stream": True})
    assert answer.status == 200
    assert len(answer.lines()) == 3
    assert answer.lines()[-1]["error"]["code"] == "metric_failed"


# ---- Access


def test_tokens() -> None:
    tokens = AccessTokens.parse([f"ci:{TOKEN}", "# a comment", "another-token-0123456789"], "tokens.txt")
    log = io.BytesIO()
    with serving(tokens=tokens, host="0.0.0.0", log=log) as service:

        def ask_with(header: str) -> int:
            return ask(service, "/v1/metrics", headers={"authorization": header, "host": "any.example"}).status

        assert ask_with(f"Bearer {TOKEN}") == ask_with("bearer another-token-0123456789") == 200
        assert ask_with("Bearer wrong-token-0123456789") == ask_with(TOKEN) == ask_with("Bearer \xff") == 401
        nameless = ask(service, "/v1/nothing", {})
        assert (nameless.status, nameless.headers["www-authenticate"]) == (401, "Bearer")
        # Refused before the body is awaited, which never ends.
        assert ask(service, "/v1/score", pieces=[b"["]).status == 401
        assert ask(service, "/metrics").status == ask(service, "/openapi.json").status == 401
        assert ask(service, "/healthz").status == 200
    assert TOKEN not in repr(tokens)
    assert b'"client":"ci"' in log.getvalue()
    assert TOKEN.encode() not in log.getvalue()


def test_without_tokens_other_web_sites_are_refused() -> None:
    body = {"records": [texts(1)]}
    with serving() as service:
        rebound = ask(service, "/v1/score", body, headers={"host": "attacker.example"})
        page = ask(service, "/v1/score", body, headers={"origin": "http://attacker.example"})
        local = ask(service, "/v1/score", body, headers={"host": "localhost:1234"})
    assert (rebound.status, page.status, local.status) == (421, 403, 200)


# ---- Operation


def test_health_readiness_and_shutdown() -> None:
    async def live(service: Service) -> list[Reply]:
        before = await call(service, "/readyz")
        await service._warm()
        ready = await call(service, "/readyz")
        service.draining = service.closing = True
        draining = await call(service, "/readyz")
        score = await call(service, "/v1/score", {"records": [texts(1)]})
        return [before, ready, draining, score, await call(service, "/healthz")]

    with serving() as service:
        before, ready, draining, score, healthy = asyncio.run(live(service))
    assert (before.status, before.code) == (503, "not_ready")
    assert ready.status == 200
    assert (draining.status, draining.code) == (503, "shutting_down")
    assert (score.status, score.headers["connection"]) == (200, "close")
    assert healthy.json() == {"status": "ok"}


def test_logs_have_no_texts_unless_asked_for() -> None:
    body = {"records": [{"output": "break"}, {"output": "private words"}]}
    for texts_too in (False, True):
        log = io.BytesIO()
        with serving("service_metrics.Breaking", log=log, log_texts=texts_too) as service:
            ask(service, "/v1/score", body, headers={"x-request-id": "my-id"})
            ask(service, "/v1/secret-path?token=abc", body)
        lines = [json.loads(line) for line in log.getvalue().splitlines()]
        assert [line["event"] for line in lines] == ["fault", "request", "request"]
        names = ("level", "id", "method", "path", "status", "code", "records", "metrics")
        expected = ["error", "my-id", "POST", "/v1/score", 502, "metric_failed", 2, ["service_metrics.Breaking"]]
        assert [lines[1][name] for name in names] == expected
        assert lines[1].keys() == {*names, "time", "event", "process", "ms"}
        assert lines[2]["path"] == "other"
        assert (b"private words" in log.getvalue()) is texts_too
        assert b"secret-path" not in log.getvalue()


def test_the_document_describes_what_the_service_answers() -> None:
    with serving(max_records=77) as service:
        document = ask(service, "/openapi.json").json()
        metrics = ask(service, "/v1/metrics").json()
        scored = ask(service, "/v1/score", {"records": [texts(1)], "details": True}).json()
    assert set(document["paths"]) == {*service._gets, *service._posts}
    schemas = document["components"]["schemas"]
    assert schemas["ScoreRequest"]["properties"]["records"]["maxItems"] == 77
    for name, value in (("MetricsResponse", metrics), ("ScoreResponse", scored)):
        schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
        pytest.importorskip("jsonschema").Draft202012Validator(schema).validate(value)
    assert [metric["name"] for metric in metrics["metrics"]] == list(LEXICAL)
    assert metrics["metrics"][0]["signature"] == metrist.metric("rougeL").signature


def test_spans_on_request() -> None:
    pytest.importorskip("opentelemetry")
    spans: list[tuple[str, dict[str, Any]]] = []

    class Span:
        def set_attribute(self, name: str, value: Any) -> None:
            spans[0][1][name] = value

    class Tracer:
        @contextmanager
        def start_as_current_span(self, name: str, **options: Any) -> Iterator[Span]:
            spans.append((name, options["attributes"]))
            yield Span()

    with serving(tracing=Tracing(Tracer())) as service:
        ask(service, "/v1/score", {"records": [texts(1)], "metrics": ["rougeL"]})
    (name, attributes), (batch, batch_attributes) = spans
    assert name == "POST /v1/score"
    assert (attributes["http.response.status_code"], attributes["metrist.records"]) == (200, 1)
    assert (batch, batch_attributes["metrist.metrics"]) == ("batch", ["rougeL"])
    assert texts(1)["output"] not in repr(spans)
