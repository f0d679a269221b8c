"""Local web pages: viewer, playground, annotation. Needs the extra `web` (starlette and uvicorn)."""

from __future__ import annotations

from importlib.util import find_spec

from metrist.errors import MissingExtra

_PACKAGES = {"web": ("starlette", "uvicorn"), "serve": ("starlette", "uvicorn", "pydantic", "prometheus_client")}


def check_installed(feature: str, extra: str = "web") -> None:
    """Raise MissingExtra unless the packages of an extra are installed. The modules of this package import them."""
    if any(find_spec(name) is None for name in _PACKAGES[extra]):
        raise MissingExtra(feature, extra)
