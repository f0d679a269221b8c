"""HTML pages from `templates/` and the files that they load. Templates escape all text; scripts set text, not HTML."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from metrist.report.html import render

_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
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


def render_page(
    template: str,
    title: str,
    *,
    scripts: Sequence[str] = (),
    styles: Sequence[str] = (),
    status: int = 200,
    **values: Any,
) -> HTMLResponse:
    """Return a page from a template of ours; scripts (ES modules) and styles are names of static files."""
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


async def read_json(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body of a request; a form of another site cannot send one."""
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise HTTPException(400, "Expected JSON.")
    try:
        value = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise HTTPException(400, "The body is no JSON.") from None
    if not isinstance(value, dict):
        raise HTTPException(400, "The body must be a JSON object.")
    return value


def static_route(*packages: str) -> Route:
    """Return the route of `/static/NAME`: the files in the folder `static` of these packages, the web's and the
    report's.

    All files are read when the server starts and found by their exact names, so that no path leads anywhere else."""
    assets: dict[str, tuple[bytes, str, str]] = {}
    for package in ("metrist.report", "metrist.web", *packages):
        for entry in files(package).joinpath("static").iterdir():
            suffix = f".{entry.name.rpartition('.')[2]}"
            if suffix in _MEDIA_TYPES:
                content = entry.read_bytes()
                tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
                assets[entry.name] = (content, _MEDIA_TYPES[suffix], tag)

    async def send_asset(request: Request) -> Response:
        asset = assets.get(request.path_params["name"])
        if asset is None:
            return render_error(request.scope, 404, "There is no such file.")
        content, media_type, tag = asset
        headers = {"Cache-Control": "no-cache", "ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    # :path takes slashes too, so that tricks with them get the same answer as any unknown name.
    return Route("/static/{name:path}", send_asset, methods=["GET"])
