"""The file of answers: three processes write at once, any may be killed, and what is damaged is set aside."""

from __future__ import annotations

import hashlib
import json
import signal
import sqlite3
import subprocess
import sys
import time
import zlib
from contextlib import closing
from pathlib import Path

import pytest

from error_codes import raises_code
from metrist.errors import ModelError
from metrist.llm import gateway
from metrist.llm.base import build_llm
from metrist.llm.budget import Budget
from metrist.llm.cache import (
    FILE_NAME,
    AnswerCache,
    CachedAnswer,
    Request,
    Scope,
    build_requests,
    cache_folder,
    open_cache,
)
from metrist.llm.messages import Completion, Message, Sampling
from metrist.runtime import Runtime
from scripted_llm import Scripted, read_log, say

HERE = str(Path(__file__).parent.parent)
GREEDY = Sampling(max_tokens=100)
LOCAL = "openai(model='m', url='http://127.0.0.1:8000/v1', key='MY_KEY', omit=['seed'])"
SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}
GOLDEN = (
    Sampling(),
    Sampling(temperature=0.7, top_p=0.9, max_tokens=64, seed=None, stop=("\n",), schema=SCHEMA, logprobs=5, sample=2),
)


def kept(text: str, answer: str = "x", llm: str = "m") -> CachedAnswer:
    question = Request(llm=llm, messages=(Message("user", text),), sampling=GREEDY)
    return CachedAnswer(request=question, completion=Completion(text=answer), arrived=time.time())


def test_what_is_kept_is_found_and_the_first_answer_stands(tmp_path):
    cache = AnswerCache(tmp_path)
    entry, other = kept("q", "first"), kept("q", "second")
    assert cache.store([entry]) == [entry.completion]
    assert cache.store([other, kept("r")]) == [Completion(text="first"), Completion(text="x")]
    found = AnswerCache(tmp_path).find([other.request, kept("unknown").request])
    assert {key: stored.completion for key, stored in found.items()} == {entry.request.key: Completion(text="first")}


def test_more_questions_than_sqlite_takes_at_once_are_found(tmp_path):
    cache = AnswerCache(tmp_path)
    many = [kept(str(n), str(n)) for n in range(2300)]
    cache.store(many)
    result = cache.find([entry.request for entry in many])
    assert [result[entry.request.key].completion.text for entry in many] == [str(n) for n in range(2300)]
    assert [entry.request.messages[0].text for entry in cache.entries()] == [str(n) for n in range(2300)]


def test_contents_are_counted_by_llm_and_cleared_by_it(tmp_path):
    cache = AnswerCache(tmp_path)
    cache.store([kept(str(n), "x" * 5000, llm) for llm in ("a", "b") for n in range(30)])
    assert cache.contents().answers == {"a": 30, "b": 30}
    assert cache.contents().size > 10_000
    assert [entry.request.llm for entry in cache.entries(Scope(llm="b"))] == ["b"] * 30
    assert cache.clear(Scope(llm="a")) == 30
    assert cache.contents().answers == {"b": 30}
    assert cache.clear() == 30
    assert cache.contents().answers == {}


def test_the_folder_is_the_environment_s_or_the_user_s(monkeypatch, tmp_path):
    monkeypatch.setenv("METRIST_LLM_CACHE", "~/there")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "there"
    monkeypatch.delenv("METRIST_LLM_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "metrist" / "llm"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "metrist" / "llm"


@pytest.mark.parametrize("content", [b"SQLite format 3\x00" + b"rubbish" * 1000, b"no data base at all" * 400])
def test_a_damaged_file_is_set_aside_and_a_new_one_begun(content, caplog):
    cache = open_cache()
    cache.path.parent.mkdir(parents=True)
    cache.path.write_bytes(content)
    assert gateway.complete(Scripted(), say("a"), GREEDY)[0].text == "A"
    assert gateway.complete(Scripted(), say("a"), GREEDY)[0].usage.cached
    assert cache.path.with_name(f"{FILE_NAME}.set-aside-1").read_bytes() == content
    (message,) = caplog.messages
    assert f"{cache.path} was set aside as {FILE_NAME}.set-aside-1, and a new one begun" in message


def test_an_answer_with_a_changed_byte_is_asked_again_and_mended(tmp_path):
    log = tmp_path / "asked.txt"
    gateway.complete(Scripted(log=str(log)), say("a", "b"), GREEDY)
    cache = open_cache()
    with sqlite3.connect(cache.path) as raw:
        raw.execute("UPDATE answers SET answer = zeroblob(30) WHERE rowid = 1")
    raw.close()
    assert [entry.request.messages[0].text for entry in cache.entries()] == ["b"]
    for _ in range(2):
        assert [completion.text for completion in gateway.complete(Scripted(log=str(log)), say("a", "b"), GREEDY)] == [
            "A",
            "B",
        ]
    assert read_log(log) == ["a", "b", "a"]


def test_a_file_that_takes_nothing_is_found_by_the_check(tmp_path, monkeypatch):
    cache = AnswerCache(tmp_path)
    cache.store([kept("q")])

    def read_only(work):
        with closing(sqlite3.connect(f"file:{tmp_path / FILE_NAME}?mode=ro", uri=True)) as connection:
            return work(connection)

    monkeypatch.setattr(cache._store, "read", read_only)
    with raises_code(ModelError, "cannot_write", tmp_path / FILE_NAME, "readonly", "METRIST_LLM_CACHE"):
        cache.check_writable()


def test_answers_of_a_run_are_not_older_than_its_start_when_the_clock_is_put_back(tmp_path, monkeypatch):
    log = tmp_path / "asked.txt"
    runtime = Runtime.current().override(fresh=time.time())
    monkeypatch.setattr("metrist.llm.gateway.time.time", lambda: 1_000_000.0)
    for _ in range(2):
        gateway.complete(Scripted(log=str(log)), say("a"), GREEDY, runtime=runtime)
    assert read_log(log) == ["a"]


def test_answers_with_a_time_to_come_are_requested_again(tmp_path, monkeypatch):
    """The clock was ahead when they were stored; the new answers replace them, once."""
    log = tmp_path / "asked.txt"
    with monkeypatch.context() as ahead:
        ahead.setattr("metrist.llm.gateway.time.time", lambda: 4e9)
        gateway.complete(Scripted(log=str(log)), say("a"), GREEDY)
    for _ in range(2):
        runtime = Runtime.current().override(fresh=True, retry_failed=True)
        for _ in range(2):
            gateway.complete(Scripted(log=str(log)), say("a"), GREEDY, runtime=runtime)
    assert read_log(log) == ["a", "a", "a"]


def test_spending_is_remembered_when_the_clock_jumps(tmp_path, monkeypatch):
    cache = AnswerCache(tmp_path)
    Budget(cache, 1.0, "run").admit([0.75])
    monkeypatch.setattr("time.time", lambda: 4e9)
    cache.check_writable()
    assert Budget(cache, 1.0, "run").state().reserved == 0.75


WRITER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from metrist.llm import gateway
from metrist.llm.messages import Sampling
from scripted_llm import Scripted, say
n = 0
while True:
    gateway.complete(Scripted(), say(f"{sys.argv[2]} {n}", f"shared {n}"), Sampling(max_tokens=100))
    print(n, flush=True)
    n += 1
"""


@pytest.mark.skipif(sys.platform == "win32", reason="kills processes by signal")
def test_three_writers_at_once_killed_lose_no_answer_that_was_used(tmp_path, popen):
    writers = [
        popen([sys.executable, "-c", WRITER, HERE, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for name in "abc"
    ]
    # Each has begun before the first is killed; then one after the other, in the middle of whatever it does.
    for writer in writers:
        assert writer.stdout
        assert writer.stdout.readline() == b"0\n"
    used = {}
    for name, writer in zip("abc", writers, strict=True):
        for _ in range(10):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        out, errors = writer.communicate(timeout=60)
        assert errors == b""
        # A last line without its end was cut off before it was said.
        used[name] = out[: out.rfind(b"\n") + 1].count(b"\n") + 11
    log = tmp_path / "asked.txt"
    for name, count in used.items():
        texts = [f"{who} {n}" for n in range(count) for who in (name, "shared")]
        answers = gateway.complete(Scripted(log=str(log)), say(*texts), GREEDY)
        assert [answer.text for answer in answers] == [text.upper() for text in texts]
    assert read_log(log) == []
    check = sqlite3.connect(open_cache().path)
    assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check.close()


def test_a_file_of_version_0_1_is_read_in_place(tmp_path):
    """Its layout in SQL: no answer that was paid for is lost, no spending forgotten."""
    asked = {
        "llm": "scripted",
        "facts": {"weights": "w1"},
        "messages": [{"role": "user", "text": "a"}],
        "sampling": {
            "temperature": 0.0,
            "top_p": 1.0,
            "max_tokens": 100,
            "seed": 0,
            "stop": [],
            "schema": None,
            "logprobs": 0,
            "sample": 0,
        },
    }
    answer = {"text": "A", "finish": "stop", "usage": {"prompt_tokens": 100, "completion_tokens": 50, "cost": 0.25}}
    texts = [json.dumps(data, separators=(",", ":")).encode() for data in (asked, answer)]
    packed = [zlib.compress(text, 1) for text in texts]
    blobs = [data + zlib.crc32(data).to_bytes(4, "big") for data in packed]
    key = hashlib.sha256(texts[0]).digest()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as raw, raw:
        raw.execute("PRAGMA journal_mode = WAL")
        raw.execute("PRAGMA application_id = 0x6D747273")
        raw.execute(
            "CREATE TABLE answers (key BLOB PRIMARY KEY, llm TEXT NOT NULL, question BLOB NOT NULL, "
            "answer BLOB NOT NULL, arrived REAL NOT NULL)"
        )
        raw.execute("CREATE TABLE unreadable (key BLOB PRIMARY KEY, parser TEXT NOT NULL)")
        raw.execute(
            "CREATE TABLE spending (run TEXT NOT NULL, process TEXT NOT NULL, paid REAL NOT NULL, "
            "reserved REAL NOT NULL, changed REAL NOT NULL, PRIMARY KEY (run, process))"
        )
        raw.execute("INSERT INTO answers VALUES (?, 'scripted', ?, ?, 1.7e9)", (key, *blobs))
        raw.execute("INSERT INTO unreadable VALUES (?, '0.1.0')", (key,))
        raw.execute("INSERT INTO spending VALUES ('run', 'host:1', 0.5, 0.25, 1.7e9)")
    log = tmp_path / "asked.txt"
    (found,) = gateway.complete(Scripted(log=str(log)), say("a"), GREEDY, runtime=Runtime(llm_cache=tmp_path))
    assert (found.text, found.usage.cached, found.key) == ("A", True, key)
    assert read_log(log) == []
    cache = AnswerCache(tmp_path)
    assert (cache.contents().answers, cache.contents().unreadable) == ({"scripted": 1}, {"scripted": 1})
    state = Budget(cache, 1.0, "run").state()
    assert (state.paid, state.reserved) == (0.5, 0.25)


@pytest.mark.parametrize(
    ("spec", "sampling", "key"),
    [
        ("openai(model='gpt-4o-mini')", GOLDEN[0], "d5170dc55b4353316f72c16dff155cee7dbac695e61768055fb201050b4b7da7"),
        ("openai(model='gpt-4o-mini')", GOLDEN[1], "d079cb2f3e644082401f328f518447f096e160482376ae9511dbfe879309c197"),
        (LOCAL, GOLDEN[0], "0a48eaa64f02bf353200184a87cb2030b767fba4f44e0b57dbcaf42360db041c"),
        (LOCAL, GOLDEN[1], "fed4cfeb7e5fe46606e6b9ce4fc8e68dcb249da06eff8fd9288eaa58401173d3"),
    ],
)
def test_keys_are_those_of_answers_that_users_have_stored(spec, sampling, key):
    """Computed by metrist 0.1.0 before its modules were merged: a change would make all stored answers worthless."""
    messages = [Message("system", "Be brief."), Message("user", "Grade: café – ok")]
    (request,) = build_requests(build_llm(spec), [messages], sampling)
    assert request.key.hex() == key
    content = {0: "00c4e1b4f4feda61973b944d9ad1d7e5a8bcb29d13978fc61bb1c83f65017c24"}.get(
        sampling.sample, "7cab5fd5d3576e664d217de8626dcdaa6bbcc412e4cbfb703b06dc359c7c4037"
    )
    assert request.content_key.hex() == content
