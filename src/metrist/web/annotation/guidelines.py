"""Guidelines for raters: Markdown as elements of a page, which scripts build without HTML.

Only the tags below come out: HTML and images in the text stay text, and links lead to other servers by HTTP or mail.
"""

from __future__ import annotations

from typing import Any

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

#: The dialog that shows them has headings of its own above and below.
_HEADINGS = {"h1": "h3", "h2": "h3", "h3": "h4", "h4": "h4", "h5": "h4", "h6": "h4"}
_LINKS = ("http://", "https://", "mailto:")


def parse_guidelines(text: str) -> list[Any]:
    """The elements of a text: strings, and objects with a `tag`, `children` and, where it is a link, `href`. A line
    break stays one."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    return _convert_children(SyntaxTreeNode(parser.parse(text)))


def _convert_children(node: SyntaxTreeNode) -> list[Any]:
    return [element for child in node.children for element in _convert(child)]


def _convert(node: SyntaxTreeNode) -> list[Any]:
    if node.type == "text":
        return [node.content]
    if node.type in ("softbreak", "hardbreak"):
        return [{"tag": "br", "children": []}]
    if node.type in ("code_inline", "code_block", "fence"):
        return [{"tag": "code" if node.type == "code_inline" else "pre", "children": [node.content]}]
    if node.type == "inline" or node.hidden:  # The paragraph of a short item of a list.
        return _convert_children(node)
    element: dict[str, Any] = {"tag": _HEADINGS.get(node.tag, node.tag), "children": _convert_children(node)}
    if node.type == "link":
        target = str(node.attrs["href"])
        return [{**element, "href": target}] if target.startswith(_LINKS) else element["children"]
    return [element]
