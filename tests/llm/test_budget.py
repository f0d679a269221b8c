"""The limit on cost: nothing is sent that could pass it, across processes, and a second run pays for nothing again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from error_codes import raises_code
from fault_server import FaultServer, answer
from metrist.errors import ModelError, RunError
from metrist.llm import budget, gateway
from metrist.llm.budget import Budget
from metrist.llm.cache import AnswerCache, open_cache
from metrist.llm.messages import Sampling
from metrist.llm.openai import OpenAI
from metrist.metrics.base import Shard
from metrist.metrics.llm_metric import LLMMetric
from metrist.records import Record
from metrist.runtime import VARIABLES, Runtime
from scripted_llm import Scripted, read_log, say

HERE = str(Path(__file__).parent.parent)
GREEDY = Sampling(max_tokens=100)
#: What the answer to a letter can cost: a byte, 16 tokens around it and 16 around the whole, and 100 of the answer.
WORST = 1.33


@pytest.fixture(autouse=True)
def _cent_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prices.toml").write_text("[[price]]\nmodel = 'm'\ninput = 10_000\noutput = 10_000\n")
    monkeypatch.setenv("METRIST_PRICES", str(tmp_path / "prices.toml"))
    monkeypatch.setenv(VARIABLES["run_id"], "this test")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "asked.txt"


def cheap(log: Path) -> Scripted:
    """Takes 20 + 10 tokens, so 30 cents where 1.33 dollars are reserved."""
    return Scripted(log=str(log), tokens=(20, 10))


def test_a_run_stops_before_what_could_pass_the_limit(log, monkeypatch):
    monkeypatch.setenv("METRIST_MAX_COST", "4")
    letters = [chr(97 + n) for n in range(20)]
    with raises_code(ModelError, "budget", "$4", "$2.7000", "$1.33", 11, "METRIST_MAX_COST"):
        gateway.complete(cheap(log), say(*letters), GREEDY)
    assert read_log(log) == letters[:9]
    assert 9 * 0.3 + WORST > 4 >= 8 * 0.3 + WORST
    monkeypatch.setenv("METRIST_MAX_COST", "20")
    monkeypatch.setenv(VARIABLES["run_id"], "a second run")
    answers = gateway.complete(cheap(log), say(*letters), GREEDY)
    assert read_log(log) == letters
    assert sum(answer.usage.cost or 0.0 for answer in answers) == pytest.approx(11 * 0.3)


def test_within_the_limit_all_is_sent_at_once(log, monkeypatch):
    monkeypatch.setenv("METRIST_MAX_COST", str(3 * WORST))
    batches = []
    complete = Scripted.complete_batch
    monkeypatch.setattr(
        Scripted,
        "complete_batch",
        lambda self, some, *rest: (batches.append(len(some)), complete(self, some, *rest))[1],
    )
    gateway.complete(cheap(log), say("a", "b", "c"), GREEDY)
    assert batches == [3]


def test_answered_questions_are_free_even_with_nothing_left(log, monkeypatch):
    gateway.complete(cheap(log), say("a"), GREEDY)
    monkeypatch.setenv("METRIST_MAX_COST", "0")
    assert gateway.complete(cheap(log), say("a"), GREEDY)[0].text == "A"
    with raises_code(ModelError, "budget", "$0 ", "$0.0000", 1):
        gateway.complete(cheap(log), say("b"), GREEDY)
    assert read_log(log) == ["a"]


def test_without_a_price_a_limit_is_refused_with_what_to_do(log, monkeypatch):
    monkeypatch.setenv("METRIST_MAX_COST", "5")
    llm = Scripted(model="nobody/knows", log=str(log))
    with raises_code(ModelError, "budget", "scripted(model='nobody/knows'", "$5", "METRIST_PRICES"):
        gateway.complete(llm, say("a"), GREEDY)
    assert read_log(log) == []


@pytest.mark.parametrize("text", ["much", "-1", "nan", "inf"])
def test_a_limit_that_is_no_amount_is_refused(monkeypatch, text):
    monkeypatch.setenv("METRIST_MAX_COST", text)
    with raises_code(RunError, "invalid_value", "METRIST_MAX_COST", text):
        gateway.complete(Scripted(), say("a"), GREEDY)


def test_a_failure_without_a_word_about_its_tokens_counts_in_full(log, monkeypatch):
    monkeypatch.setenv("METRIST_MAX_COST", "10")
    gateway.complete(cheap(log), say("fail", "a"), GREEDY)
    standing = Budget(open_cache(), 10, os.environ[VARIABLES["run_id"]]).state()
    assert standing.paid == pytest.approx(0.3 + (4 + 32 + 100) / 100)
    assert standing.reserved == pytest.approx(0, abs=1e-9)


def test_each_run_has_a_limit_of_its_own(log, monkeypatch):
    monkeypatch.delenv(VARIABLES["run_id"])
    for letter in "abc":
        with Runtime.current().override(max_cost=WORST).activate() as runtime:
            gateway.complete(cheap(log), say(letter), GREEDY)
            assert Runtime.current().override(device="cpu").run_id == runtime.run_id
    assert read_log(log) == ["a", "b", "c"]
    assert Runtime.current().run_id is None


def test_a_process_that_no_run_was_announced_to_has_one_account(log, monkeypatch):
    monkeypatch.delenv(VARIABLES["run_id"])
    monkeypatch.setenv("METRIST_MAX_COST", "1.5")
    gateway.complete(cheap(log), say("a"), GREEDY)
    with raises_code(ModelError, "budget", "$0.3000"):
        gateway.complete(cheap(log), say("b"), GREEDY)


SPENDER = """
import sys
sys.path.insert(0, sys.argv[1])
from metrist.errors import ModelError, RunError
from metrist.llm import gateway
from metrist.llm.messages import Sampling
from metrist.llm.openai import OpenAI
from metrist.metrics.base import Shard
from metrist.metrics.llm_metric import LLMMetric
from metrist.records import Record
from scripted_llm import Scripted, say
llm = Scripted(log=sys.argv[2], tokens=(20, 10))
try:
    for n in range(0, 100, 5):
        gateway.complete(llm, say(*(f"{sys.argv[3]}{m:02}" for m in range(n, n + 5))), Sampling(max_tokens=100))
except ModelError as fault:
    print(fault)
"""


def test_three_processes_of_a_run_share_one_limit(log, monkeypatch, popen):
    monkeypatch.setenv("METRIST_MAX_COST", "30")
    spenders = [
        popen([sys.executable, "-c", SPENDER, HERE, f"{log}.{name}", name], stdout=subprocess.PIPE) for name in "abc"
    ]
    texts = [spender.communicate(timeout=300)[0].decode() for spender in spenders]
    count = sum(len(read_log(Path(f"{log}.{name}"))) for name in "abc")
    assert count * 0.3 <= 30
    # None stops while another may yet give back what it has reserved: the last sent leaves less than a worst case.
    assert 30 - count * 0.3 < 1.35 + 1e-9
    assert all("the limit of $30 " in one for one in texts)


def test_what_a_dead_process_had_reserved_stays_so_and_is_not_waited_for(tmp_path):
    died = subprocess.Popen([sys.executable, "-c", ""])
    died.wait()
    account = Budget(AnswerCache(tmp_path), 10.0)
    account._process = account._process.replace(str(os.getpid()), str(died.pid))
    assert account.admit([4.0, 4.0, 4.0]) == 2
    other = Budget(AnswerCache(tmp_path), 10.0)
    with raises_code(ModelError, "budget", "$0.0000", "$8.0000"):
        other.admit([4.0])
    assert other.admit([2.0]) == 1


def test_a_process_of_another_machine_is_waited_for_until_it_is_silent():
    assert budget._is_alive("elsewhere:1", time.time() - 10)
    assert not budget._is_alive("elsewhere:1", time.time() - 1000)
    assert budget._is_alive(f"{os.uname().nodename}:{os.getpid()}", 0.0)
    assert budget._is_alive(f"{os.uname().nodename}:1", 0.0)


def test_amounts_and_limits_that_cannot_be_are_refused():
    with raises_code(RunError, "invalid_value", "max_cost", -1):
        Runtime(max_cost=-1)
    with raises_code(RunError, "invalid_value", "concurrency", 0):
        Runtime(concurrency=0)


@dataclass(frozen=True, kw_only=True)
class Number(LLMMetric):
    """Asks for a number."""

    bounds = (0.0, 1.0)

    def prompt(self, record):
        return f"Grade {record.output}."

    def parse(self, text):
        return float(text)


def test_an_absurd_token_count_does_not_spend_the_budget(monkeypatch):
    monkeypatch.setenv("METRIST_MAX_COST", "400")
    absurd = answer("0.5", usage={"prompt_tokens": 1_000_000, "completion_tokens": 3})
    with FaultServer(lambda _: absurd) as server:
        metric = Number(llm=OpenAI(model="m", url=server.url), max_tokens=100)
        scores = metric.score(Shard([Record(item=name, system="s", output=name) for name in "abcd"]))
    assert list(scores.values) == [0.5] * 4
    # A request of some 150 bytes holds at most that many tokens, and those that the server adds to it: 4,096.
    cost = sum(usage["cost"] for usage in scores.usages.values())
    assert 4 * 40.96 < cost < 4 * 45
    assert len([remark for remark in metric.remarks(scores) if "4 calls cannot be right" in remark]) == 1
