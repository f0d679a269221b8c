"""Guidelines in Markdown. Expected elements are those that CommonMark's specification gives."""

from __future__ import annotations

from typing import Any

import pytest

from metrist.web.annotation.guidelines import parse_guidelines


def tag(name: str, *children: Any, **attributes: str) -> dict[str, Any]:
    return {"tag": name, "children": list(children), **attributes}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("# Rate\n\nRead *all*\nof **it**.", [
            tag("h3", "Rate"), tag("p", "Read ", tag("em", "all"), tag("br"), "of ", tag("strong", "it"), ".")
        ]),
        ("- `5`: good\n- 1: bad", [tag("ul", tag("li", tag("code", "5"), ": good"), tag("li", "1: bad"))]),
        ("```\na < b\n```", [tag("pre", "a < b\n")]),
        ("[wiki](https://x.org/a)", [tag("p", tag("a", "wiki", href="https://x.org/a"))]),
        ("[here](/export/answers.jsonl)", [tag("p", "here")]),
        ("[x](javascript:alert)", [tag("p", "[x](javascript:alert)")]),
        ("<b onclick=x>b</b>", [tag("p", "<b onclick=x>b</b>")]),
        ("![x](https://x.org/i.png)", [tag("p", "!", tag("a", "x", href="https://x.org/i.png"))]),
    ],
)  # fmt: skip
def test_markdown_becomes_elements_and_nothing_else(text: str, expected: list[Any]) -> None:
    assert parse_guidelines(text) == expected


@pytest.mark.parametrize("piece", ["> ", "- ", "*", "[", "`", "|a|\n|-|\n", "(", "\\"])
def test_hostile_markdown_is_parsed(piece: str) -> None:
    parse_guidelines(piece * (20_000 // len(piece)))
