"""HTML pages from `templates/` and the files that they load. Templates escape all text; scripts set text, not HTML."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from metrist.report.html import render

_TITLES = {
    400: "That request cannot be answered",
    401: "A token is needed",
    403: "Refused",
    404: "Not found",
    405: "Refused",
    413: "Too large",
    421: "Another server was meant",
    500: "Something went wrong",
}
_Body = TypeVar("_Body", bound=msgspec.Struct)


def render_page(
    template: str,
    title: str,
    *,
    scripts: Sequence[str] = (),
    styles: Sequence[str] = (),
    status: int = 200,
    **values: Any,
) -> HTMLResponse:
    """Return a page from a template of `templates/`; scripts (ES modules) and styles are names of static files."""
    page = render(template, package="metrist.web", title=title, scripts=scripts, styles=styles, **values)
    return HTMLResponse(page, status_code=status)


def render_error(scope: Scope, status: int, message: str) -> Response:
    """Return an error as a page, or as JSON where a script or program asked."""
    if scope["path"].startswith("/api/"):
        # In ASCII: a message may quote a lone surrogate, which UTF-8 has no bytes for.
        return Response(json.dumps({"error": message}), status_code=status, media_type="application/json")
    return render_page("message.html", _TITLES.get(status, "That did not work"), message=message, status=status)


def render_redirect(address: str) -> HTMLResponse:
    """Return a page that loads another address of this server at once."""
    return HTMLResponse(render("redirect.html", package="metrist.web", address=address))


def answer_json(value: Any) -> Response:
    """Return data as JSON in ASCII: texts may hold lone surrogates, which UTF-8 cannot encode."""
    return Response(json.dumps(value, allow_nan=False), media_type="application/json")


async def read_body(request: Request, kind: type[_Body]) -> _Body:
    """Return the JSON in the body of a request as a struct; a form of another site cannot send one."""
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise HTTPException(400, "Expected JSON.")
    try:
        # Not with msgspec: a text may have half of a surrogate pair.
        return msgspec.convert(json.loads(await request.body()), kind)
    except msgspec.ValidationError as error:
        raise HTTPException(400, f"{error}.") from None
    except (ValueError, RecursionError):
        raise HTTPException(400, "The body is no JSON.") from None


def static_route(*packages: str) -> Mount:
    """Return the route of `/static/NAME`: files of these packages, the web's and the report's, or links to them."""
    folders: list[str | tuple[str, str]] = [(name, "static") for name in ("metrist.report", "metrist.web", *packages)]
    return Mount("/static", StaticFiles(packages=folders, follow_symlink=True))
