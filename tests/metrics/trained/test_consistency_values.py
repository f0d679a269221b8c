"""The shipped model on numbers, prices and dates: a right value is supported however it is written, and a wrong one is
marked whole, with the source's own value. The wordings were written for this test."""

from __future__ import annotations

import pytest

from metrist.errors import MissingExtra
from metrist.metrics.base import Shard
from metrist.metrics.trained.consistency import Consistency
from metrist.models.devices import Options
from metrist.models.weights import find_weights
from metrist.records import Record
from metrist.scores import Score

SOURCE = (
    "Our phone plans start at €30 a month for the basic plan. The premium plan costs €45 a month. Delivery is free for "
    "orders of more than €9.99. The company was founded in 1998 and has 3.5 million customers. The new shop opened on "
    "12 May 2021. Members get 5 % off. The support line answers within 30 minutes, and three of the two dozen shops "
    "are closed. The store room is kept at -5 °C. Ticket sales begin at 5pm. It is the third shop in the city."
)
RIGHT = (
    "The basic plan costs 30 euros a month.",
    "The basic plan costs 30,00 € a month.",
    "The premium plan costs EUR 45 a month.",
    "Delivery is free for orders of more than 9,99 €.",
    "The company has 3,500,000 customers.",
    "The new shop opened on 2021-05-12.",
    "The new shop opened on May 12, 2021.",
    "Members get five percent off.",
    "The support line answers within thirty minutes.",
    "3 of the 24 shops are closed.",
    "The store room is kept at minus five °C.",
    "Ticket sales begin at 17:00.",
    "It is the 3rd shop in the city.",
)
#: A wrong sentence, what is wrong, and what the source says.
WRONG = (
    ("The basic plan costs €60 a month.", "€60", "€30"),
    ("The basic plan costs €9 a month.", "€9", "€30"),
    ("The premium plan costs €30 a month.", "€30", "€45"),
    ("The premium plan costs 54 euros a month.", "54 euros", "€45"),
    ("Delivery is free for orders of more than €19.99.", "€19.99", "€9.99"),
    ("The company has 4.5 million customers.", "4.5 million", "3.5 million"),
    ("The company has 3.5 billion customers.", "3.5 billion", "3.5 million"),
    ("The company was founded in 1989.", "1989", "1998"),
    ("The new shop opened on 13 May 2021.", "13 May 2021", "12 May 2021"),
    ("The new shop opened on 2021-06-12.", "2021-06-12", "12 May 2021"),
    ("Members get 15 percent off.", "15 percent", "5 %"),
    ("The support line answers within 60 minutes.", "60 minutes", "30 minutes"),
    ("The store room is kept at 5 °C.", "5 °C", "-5 °C"),
    ("Ticket sales begin at 7pm.", "7pm", "5pm"),
    ("It is the fourth shop in the city.", "fourth", "third"),
)


@pytest.fixture(scope="module")
def results() -> dict[str, Score]:
    try:
        find_weights(Options(model="metrist:english-small"))
    except MissingExtra as error:
        pytest.skip(f"the model is not installed: {error}")
    outputs = [*RIGHT, *(sentence for sentence, _, _ in WRONG)]
    records = [Record(item="1", system="a", output=output, source=SOURCE) for output in outputs]
    return dict(zip(outputs, Consistency().score(Shard(records)), strict=True))


@pytest.mark.parametrize("sentence", RIGHT)
def test_a_right_value_is_supported_however_it_is_written(sentence: str, results: dict[str, Score]) -> None:
    assert results[sentence].value >= 0.5
    assert results[sentence].errors == ()


@pytest.mark.parametrize(("sentence", "wrong", "right"), WRONG)
def test_a_wrong_value_is_marked_whole(sentence: str, wrong: str, right: str, results: dict[str, Score]) -> None:
    result = results[sentence]
    assert result.value <= 0.05
    [error] = result.errors
    assert (error.text, error.revision, error.severity) == (wrong, right, "major")
    assert f"The source says “{right}”, not “{wrong}”" in error.explanation
