from __future__ import annotations

import os
import subprocess
import sys

from flavours import cut, needs_compiled
from hypothesis import given
from hypothesis import strategies as st

from metrist.kernels import SEPARATOR, WORD, CharClasses, from_lists, relabel


@given(lists=st.lists(st.lists(st.text(max_size=3), max_size=5), max_size=5))
def test_token_lists_come_out_as_they_went_in(lists: list[list[str]]) -> None:
    assert cut(from_lists(lists)) == lists


@given(lists=st.lists(st.lists(st.text("abAB", max_size=2), max_size=5), max_size=5))
def test_relabelled_words_that_become_equal_share_a_number(lists: list[list[str]]) -> None:
    tokens = from_lists(lists)
    lowered = relabel(tokens, [word.lower() for word in tokens.words])
    assert cut(lowered) == [[token.lower() for token in some] for some in lists]
    assert len(set(lowered.words)) == len(lowered.words)


def test_characters_beyond_the_first_page_are_classified_page_by_page_on_first_use() -> None:
    requests: list[str] = []
    classes = CharClasses(lambda character: requests.append(character) or WORD)
    assert requests == [chr(number) for number in range(256) if number != ord(" ")]
    requests.clear()
    assert classes[0x4E2D] == WORD
    assert len(requests) == 256
    assert classes[0x4E2E] == WORD
    assert len(requests) == 256


def test_a_space_always_separates() -> None:
    assert CharClasses(lambda _: WORD)[ord(" ")] == SEPARATOR


@needs_compiled
def test_the_environment_chooses_the_twin() -> None:
    program = "from metrist import kernels; print(kernels.have_compiled)"
    for wish, output in (("python", "False"), ("", "True")):
        environment = {**os.environ, "METRIST_KERNELS": wish}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == output
