"""Pages and parts of pages from jinja2 templates (`templates/*.html`) and style sheets (`static/*.css`).

Every value that a template shows passes through `_clean` and is then escaped, so that no text of a user is interpreted.
Pages load nothing: styles and scripts are inside.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache, partial
from importlib.resources import files
from itertools import count
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from metrist.report.cells import format_cell
from metrist.report.output_card import MarkedText, clean_text, describe_error, severity_of

if TYPE_CHECKING:
    from jinja2 import Environment

#: What every page and every report in Markdown has, and no other file.
PAGE_MARK = re.compile(rb'<body class="metrist">|^<sub>metrist ', re.MULTILINE)
#: What data inside a script element must not have as it is: what could end the element or begin a comment, and
#: characters that are shown as escapes, as in `static/elements.js`.
_UNSAFE = re.compile("[<\u007f-\u009f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@cache
def make_environment(package: str = "metrist.report") -> Environment:
    """The templates of a package; they may use those of the report."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    packages = dict.fromkeys((package, "metrist.report"))
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "severity": severity_of,
        "describe": partial(describe_error, brief=True),
        "cell": format_cell,
    }
    environment.globals["MarkedText"] = MarkedText
    return environment


def _clean(value: Any) -> Any:
    """A text with control characters made visible; markup of a template, and SVG, stay as they are."""
    return clean_text(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def render(template: str, *, package: str = "metrist.report", **values: Any) -> str:
    """A template with these values. `next_number()` gives numbers for identifiers, from 1 on."""
    numbers = count(1)
    return make_environment(package).get_template(template).render(next_number=numbers.__next__, **values)


def render_page(template: str, *, title: str, **values: Any) -> str:
    """A page that stands alone, without a script."""
    return render("page.html", title=title, content=template, style=read_static("base.css"), **values)


def render_fragment(template: str, **values: Any) -> str:
    """The same for a notebook, with its style."""
    return render("fragment.html", content=template, style=read_static("base.css"), **values)


@cache
def read_static(name: str) -> Markup:
    """A file of ours, as markup that is not escaped."""
    return Markup((files("metrist.report") / "static" / name).read_text(encoding="utf-8"))


def join_scripts(*names: str) -> Markup:
    """ES modules as one script, whose imports are of each other only."""
    text = "".join(read_static(name) for name in names)
    return Markup('"use strict";\n' + re.sub(r"^import .*\n|^export (?=\w)", "", text, flags=re.MULTILINE))


def embed_json(data: Any) -> Markup:
    """Data inside a script element: no text in it can end the element or begin a comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(_UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def hash_source(text: str) -> str:
    """The source expression of a content security policy that allows this script or style alone."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
