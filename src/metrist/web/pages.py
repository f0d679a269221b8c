"""HTML pages and the files that they load. All text is escaped here or set as text by scripts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from metrist.errors import escape_controls

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
    title: str, body: str, *, scripts: Sequence[str] = (), styles: Sequence[str] = (), status: int = 200
) -> HTMLResponse:
    """Return a page. `body` is HTML with all texts escaped; scripts (ES modules) and styles are names of static files,
    and the shared style sheet is always loaded."""
    links = "".join(f'<link rel="stylesheet" href="/static/{escape(name)}">\n' for name in ("base.css", *styles))
    modules = "".join(f'<script type="module" src="/static/{escape(name)}"></script>\n' for name in scripts)
    return HTMLResponse(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<title>{escape_text(title)}</title>\n<link rel="icon" href="/static/icon.svg">\n'
        f"{links}{modules}</head>\n<body>\n{body}\n</body>\n</html>\n",
        status_code=status,
    )


def render_error(scope: Scope, status: int, message: str) -> Response:
    """Return an error as a page, or as JSON where a script or program asked."""
    if scope["path"].startswith("/api/"):
        # In ASCII: a message may quote a lone surrogate, which UTF-8 has no bytes for.
        return Response(json.dumps({"error": message}), status_code=status, media_type="application/json")
    title = _TITLES.get(status, "That did not work")
    body = f'<main class="notice">\n<h1>{escape_text(title)}</h1>\n<p>{escape_text(message)}</p>\n</main>'
    return render_page(title, body, status=status)


def render_redirect(address: str) -> HTMLResponse:
    """Return a page that loads another address of this server at once."""
    quoted = escape(address, quote=True)
    return HTMLResponse(
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>metrist</title>\n'
        '<link rel="icon" href="/static/icon.svg">\n'
        f'<meta http-equiv="refresh" content="0;url={quoted}">\n<p><a href="{quoted}">Continue</a></p>\n</html>\n'
    )


def escape_text(text: str) -> str:
    """Escape a text for HTML, with control characters and changes of direction shown as escapes."""
    return escape(escape_controls(text), quote=True)


def static_route(*packages: str) -> Route:
    """Return the route of `/static/NAME`: the files in the folder `static` of these packages, and of metrist.web.

    All files are read when the server starts and found by their exact names, so that no path leads anywhere else."""
    assets: dict[str, tuple[bytes, str, str]] = {}
    for package in ("metrist.web", *packages):
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
