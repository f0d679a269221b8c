"""Local web pages: viewer, playground, annotation. Needs the extra `web` (starlette and uvicorn)."""

from __future__ import annotations

from importlib.util import find_spec

from metrist.errors import MissingExtra


def check_installed(feature: str) -> None:
    """Raise MissingExtra unless starlette and uvicorn are installed. The other modules of this package import them."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise MissingExtra(feature, "web")
