"""The heat map of tokens: every token shown, none obeyed, the scale fixed and said."""

from __future__ import annotations

import io
import math
from html.parser import HTMLParser

import pytest
from rich.console import Console

from metrist.report.heat import STEPS, Reading, find_step, format_probability
from metrist.report.output_card import OutputCard
from metrist.report.outputs import Heat
from metrist.scores import Score

ATTACK = "<script>alert(1)</script>\"'&[red]\x1b[31m\u202e\ud800"
SHOWN = "<script>alert(1)</script>\"'&[red]\\x1b[31m\\u202e\\ud800"


def make_heat(
    *pieces: str, logprobs: tuple[float, ...] | None = None, readings: int = 1, show_pieces: bool = False
) -> Heat:
    numbers = logprobs or tuple(-float(n) for n in range(len(pieces)))
    reading = Reading(label="output, given source", pieces=pieces, logprobs=numbers)
    name = "m(a='<b>')"
    card = OutputCard(item="i1", system="s", by=name, scores={name: Score(value=-1.5)}, readings=(reading,) * readings)
    return Heat(outputs=[card], notes=["3 of 9 outputs, the worst first"], pieces=show_pieces)


class Texts(HTMLParser):
    """What a page shows, and which elements and attributes it has."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize(
    ("p", "step"),
    [(1.0, 0), (0.5, 0), (0.49, 1), (0.1, 1), (0.099, 2), (0.01, 2), (0.0099, 3), (0.001, 3), (0.00099, 4), (1e-30, 4)],
)
def test_a_step_of_the_scale_goes_from_its_least_probability_up(p: float, step: int) -> None:
    assert find_step(math.log(p)) == step


def test_a_token_without_a_number_is_shown_uncoloured() -> None:
    assert (find_step(math.nan), find_step(-math.inf)) == (0, 4)
    shown = [format_probability(logprob) for logprob in (math.nan, -math.inf, math.log(0.25))]
    assert shown == ["n/a", "below 0.0001", "0.25"]
    page = Texts(make_heat("a", " b", logprobs=(math.nan, -math.inf)).page())
    titles = [attributes["title"] for tag, attributes in page.tags if "title" in attributes and tag == "span"]
    assert titles == ["log-probability n/a, probability n/a", "log-probability -inf, probability below 0.0001"]


def test_the_least_likely_tokens_are_listed_worst_first() -> None:
    reading = Reading(label="", pieces=tuple("abcdefg"), logprobs=(-1.0, -9.0, math.nan, -3.0, -2.0, -8.0, -0.5))
    assert reading.worst(by_piece=True) == [("b", -9.0), ("f", -8.0), ("d", -3.0), ("e", -2.0), ("a", -1.0)]


def test_plain_text_marks_tokens_that_were_not_expected() -> None:
    text = make_heat("The", " cat", " flew", logprobs=(-0.1, -2.0, -7.25)).text()
    assert text.splitlines() == [
        "item i1 · system s",
        "m(a='<b>'): -1.500",
        "output, given source:",
        "  The cat [flew -7.2]",
        "  least likely: 'flew' -7.25, 'cat' -2.00, 'The' -0.10",
        "",
        "3 of 9 outputs, the worst first",
        "In brackets: words with a probability below .01, and their log-probability: the sum over the pieces that the "
        "model reads.",
    ]


def test_a_terminal_shows_colours_and_escapes_tokens() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system="truecolor", width=200, legacy_windows=False)
    console.print(make_heat("calm", ATTACK, logprobs=(-0.1, -9.0), show_pieces=True))
    drawn = screen.getvalue()
    assert SHOWN in drawn
    assert ATTACK not in drawn
    assert f"\x1b[1;37;48;2;179;38;30m{SHOWN}" in drawn
    plain = "".join(part.partition("m")[2] if n else part for n, part in enumerate(drawn.split("\x1b[")))
    for step in STEPS:
        assert step.label in plain
    assert "3 of 9 outputs" in plain


@pytest.mark.parametrize("full_page", [True, False])
def test_a_page_shows_any_text_and_loads_and_runs_nothing(full_page: bool) -> None:
    drawn = make_heat(" a", ATTACK, "</span>")
    page = drawn.page() if full_page else drawn._repr_html_()
    parsed = Texts(page)
    assert SHOWN in parsed.text
    assert "m(a='<b>')" in parsed.text
    tags = {tag for tag, _ in parsed.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "b"}
    assert not any(name.startswith("on") or name in ("src", "href") for _, attrs in parsed.tags for name in attrs)
    assert "url(" not in page
    assert "@import" not in page
    assert page.startswith("<!doctype html>") == full_page


def test_a_page_has_a_legend_and_the_numbers_of_each_token() -> None:
    parsed = Texts(make_heat("The", " cat", logprobs=(-0.25, -7.25)).page())
    spans = [attributes for tag, attributes in parsed.tags if tag == "span" and "title" in attributes]
    assert spans == [
        {"class": "t s0", "title": "log-probability -0.25, probability 0.78"},
        {"class": "t s4", "title": "log-probability -7.25, probability 0.00071"},
    ]
    for step in STEPS:
        assert step.label in parsed.text
    assert "Least likely: cat -7.25 (p 0.00071), The -0.25 (p 0.78)" in parsed.text
    assert "prefers-color-scheme: dark" in make_heat("a").page()


def test_many_readings_of_one_output_are_counted_not_drawn() -> None:
    drawn = make_heat("a", readings=70)
    for text in (drawn.text(), drawn.page()):
        assert text.count("output, given source") == 6
        assert "… and 64 more readings of this output" in text


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (("<s>", "The", " cat", "nap", "</s>"), "<s>The catnap</s>"),
        (("<s>", "the", "cat", "##nap", "##s", "</s>"), "<s> the catnaps </s>"),
        (("the", "cat"), "the cat"),
        (("##s",), "s"),
        ((), ""),
    ],
)
def test_words_are_apart_whether_or_not_the_tokenizer_keeps_spaces(pieces: tuple[str, ...], shown: str) -> None:
    reading = Reading(label="", pieces=pieces, logprobs=(-1.0,) * len(pieces))
    assert "".join(text for text, _ in reading.units(by_piece=True)) == shown


def test_a_piece_that_is_a_space_can_be_seen_where_it_is_marked() -> None:
    text = make_heat("The", " ", "cat", logprobs=(-0.1, -9.0, -0.2), show_pieces=True).text()
    assert "  The [␣ -9.0]cat\n  least likely: '␣' -9.00, 'cat' -0.20, 'The' -0.10\n" in text
    assert text.endswith("In brackets: pieces with a probability below .01, and their log-probability.")


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        # The numbers are powers of two, so that each sum says which pieces are in it.
        (("The", " cat", "nap", "ped", "</s>"), [("The", -1), (" catnapped", -2 - 4 - 8)]),
        (("<s>", "The", " ", "cat", "</s>"), [("The", -2), (" cat", -4 - 8)]),
        (
            (" The", " cat", ".", " It", " sat", "!", "?"),
            [("The", -1), (" cat", -2), (".", -4), (" It", -8), (" sat", -16), ("!?", -32 - 64)],
        ),
        (
            ("I", " don", "'", "t", ",", ' "', "you"),
            [("I", -1), (" don't", -2 - 4 - 8), (",", -16), (' "', -32), ("you", -64)],
        ),
        (("the", "cat", "##nap", "##s", "[SEP]"), [("the", -1), (" catnaps", -2 - 4 - 8)]),
        (("well", "-", "known", " -", " yes"), [("well-known", -1 - 2 - 4), (" -", -8), (" yes", -16)]),
        (("博物馆", "是", "自由", "。"), [("博物馆", -1), ("是", -2), ("自由", -4), ("。", -8)]),
        ((" 안녕", "하세요", " 여러분"), [("안녕하세요", -1 - 2), (" 여러분", -4)]),
        (("a", "\n", "b"), [("a", -1), (" b", -2 - 4)]),
        (("<s>", "</s>"), []),
        ((), []),
        ((" ",), [("", -1)]),
        (("x", " <s>", " y"), [("x", -1), (" <s>", -2), (" y", -4)]),
    ],
)
def test_pieces_are_put_together_as_words(pieces: tuple[str, ...], words: list[tuple[str, float]]) -> None:
    reading = Reading(label="", pieces=pieces, logprobs=tuple(-float(2**n) for n in range(len(pieces))))
    assert list(reading.units()) == words


def test_the_probability_of_a_word_is_the_product_of_its_pieces() -> None:
    reading = Reading(label="", pieces=(" un", "like", "ly"), logprobs=(math.log(0.5), math.log(0.4), math.nan))
    ((word, logprob),) = reading.units()
    assert (word, find_step(logprob)) == ("unlikely", find_step(math.log(0.2)))
    assert math.exp(logprob) == pytest.approx(0.2)


def test_an_unlikely_end_is_listed_and_not_drawn() -> None:
    heat = make_heat("The", " cat", "</s>", logprobs=(-0.1, -2.0, -7.0))
    assert "  The cat\n  least likely: '(end of text)' -7.00, 'cat' -2.00, 'The' -0.10\n" in heat.text()
    assert "</s>" not in heat.text()
    assert "&lt;/s&gt;" not in heat.page()
    assert "product of those of its pieces" in heat.page()
    pieces = make_heat("The", " cat", "</s>", logprobs=(-0.1, -2.0, -7.0), show_pieces=True)
    assert "&lt;/s&gt;" in pieces.page()
    assert "<title>Pieces by how unlikely they are</title>" in pieces.page()
