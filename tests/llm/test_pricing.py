"""What answers cost: by the user's prices, else by the shipped ones, else nobody knows."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models
from tokenizers.pre_tokenizers import ByteLevel

from error_codes import raises_code
from metrist.errors import ModelError
from metrist.llm import gateway, pricing
from metrist.llm.base import LLM, build_llm
from metrist.llm.cache import Request
from metrist.llm.messages import Message, Sampling
from scripted_llm import Scripted, say

GREEDY = Sampling(max_tokens=100)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`own(text)`: a price file with that content."""

    def written(text: str) -> Path:
        path = tmp_path / "prices.toml"
        path.write_text(text)
        monkeypatch.setenv("METRIST_PRICES", str(path))
        return path

    return written


def test_every_shipped_price_has_its_day_its_server_and_sense():
    shipped = pricing._read_shipped_prices()
    assert len(shipped) >= 8
    for price in shipped:
        assert price.host
        assert isinstance(price.seen, datetime.date)
        assert 0 < price.input <= price.output < 100
    assert len({(price.host, price.model) for price in shipped}) == len(shipped)


def known(llm: LLM) -> pricing.Price:
    price = pricing.find_price(llm)
    assert price is not None
    return price


def test_a_price_is_found_by_model_and_server_with_dated_versions():
    mini = pricing.find_price(build_llm("openai(model='gpt-4o-mini')"))
    assert mini is not None
    assert (mini.input, mini.output) == (0.15, 0.60)
    assert pricing.find_price(build_llm("openai(model='gpt-4o-mini-2024-07-18')")) == mini
    assert pricing.find_price(build_llm("openai(model='gpt-4o-mini-audio')")) is None
    # The same name on a server of one's own is another matter.
    assert pricing.find_price(build_llm("openai(model='gpt-4o-mini', url='http://127.0.0.1:8000/v1')")) is None
    claude = build_llm("openai(model='claude-sonnet-4-20250514', url='https://api.anthropic.com/v1')")
    assert known(claude).output == 15.0


def test_the_user_s_prices_come_first_and_take_patterns(own):
    first = "[[price]]\nmodel = 'gpt-4o*'\nhost = '*.openai.com'\ninput = 1\noutput = 2\n"
    own(f"{first}[[price]]\nmodel = '*'\ninput = 0\noutput = 0\n")
    assert known(build_llm("openai(model='gpt-4o-mini')")).output == 2.0
    assert known(Scripted()).output == 0.0


def test_an_edited_file_counts_at_once(own):
    own("[[price]]\nmodel = 'm'\ninput = 1\noutput = 2\n")
    assert known(Scripted()).input == 1
    own("[[price]]\nmodel = 'm'\ninput = 3.5\noutput = 20\n")
    assert known(Scripted()).input == 3.5


def test_answers_carry_their_cost_and_none_where_no_price_is_known(own):
    (unknown,) = gateway.complete(Scripted(), say("a"), GREEDY)
    assert unknown.usage.cost is None
    own("[[price]]\nmodel = 'm'\ninput = 10\noutput = 100\n")
    (known, failed) = gateway.complete(Scripted(), say("b", "fail"), GREEDY)
    assert known.usage.cost == pytest.approx((100 * 10 + 50 * 100) / 1e6)
    assert not known.usage.estimated
    assert failed.usage.cost is None
    assert failed.usage.prompt_tokens is None


def test_tokens_that_the_server_did_not_count_are_estimated_and_marked(own):
    own("[[price]]\nmodel = 'm'\ninput = 10\noutput = 100\n")
    (answer,) = gateway.complete(Scripted(tokens=None), say("a" * 400), GREEDY)
    assert answer.usage.estimated
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (104, 100)
    assert answer.usage.cost == pytest.approx((104 * 10 + 100 * 100) / 1e6)
    assert gateway.complete(Scripted(tokens=None), say("a" * 400), GREEDY)[0].usage.estimated


@pytest.mark.parametrize("text", ["plain words", "日本語のテキスト", "🙂" * 20, "half \ud800", "", " \n" * 50])
def test_no_tokenizer_makes_more_tokens_than_the_bound(text):
    """A tokenizer of GPT-2's kind that has learned nothing makes a token of each byte; none makes more."""
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(ByteLevel.alphabet())}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    question = Request(llm="m", messages=(Message("user", text),), sampling=GREEDY)
    clean = text.encode("utf-8", "replace").decode()
    assert len(tokenizer.encode(clean).ids) == len(clean.encode()) <= pricing.max_prompt_tokens(question)
    assert pricing.estimate_prompt_tokens(question) <= pricing.max_prompt_tokens(question)


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("[price]\nmodel = 'm'", "$.price"),
        ("a = 1", "price"),
        ("[[price]]\ninput = 1\noutput = 2", "model"),
        ("[[price]]\nmodel = 3\ninput = 1\noutput = 2", "$.price[0].model"),
        ("[[price]]\nmodel = 'm'\ninput = 1", "output"),
        ("[[price]]\nmodel = 'm'\ninput = -1\noutput = 2", "$.price[0].input"),
        ("[[price]]\nmodel = 'm'\ninput = true\noutput = 2", "$.price[0].input"),
        ("[[price]]\nmodel = 'm'\ninput = nan\noutput = 2", "$.price[0].input"),
        ("[[price]]\nmodel = 'm'\ninput = inf\noutput = 2", "$.price[0].input"),
        ("[[price]]\nmodel='m'\ninput=1\noutput=2\nseen='may'", "$.price[0].seen"),
        ("[[price]]\nmodel='m'\ninput=1\noutptu=2", "outptu"),
    ],
)
def test_a_price_file_that_is_wrong_is_refused_with_its_place(own, content, place):
    path = own(content)
    with raises_code(ModelError, "invalid_value", path, place):
        pricing.find_price(Scripted())


def test_a_price_file_that_is_no_toml_is_refused(own):
    path = own("[[price]")
    with raises_code(ModelError, "model_unusable", path, "TOML"):
        pricing.find_price(Scripted())


def test_a_price_file_that_is_not_there_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("METRIST_PRICES", str(tmp_path / "no.toml"))
    with raises_code(ModelError, "unreadable", "METRIST_PRICES", "no.toml"):
        pricing.find_price(Scripted())
