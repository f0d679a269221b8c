"""What protects all pages: Host, Origin, token, headers, limits of bodies, static files."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from error_codes import raises_code
from metrist.errors import MissingExtra, RunError
from metrist.web import check_installed
from metrist.web.pages import static_route
from metrist.web.security import Access, is_loopback
from metrist.web.server import create_app, format_address, grant_access
from web_server import RunningServer, run_server

TOKEN = "a-token-for-tests"


async def echo(request: Request) -> Response:
    body = await request.body()
    return JSONResponse({"user": request.scope["metrist.user"], "length": len(body), "query": str(request.url.query)})


async def fail(request: Request) -> Response:
    kind = request.query_params.get("kind")
    if kind == "mendable":
        raise RunError("<b>no\x1b[31m such run</b>")
    if kind == "missing":
        raise HTTPException(404, "no such output")
    raise ZeroDivisionError("secret detail")


def app(access: Access) -> Any:
    routes = [Route("/", echo), Route("/api/echo", echo, methods=["GET", "POST"])]
    return create_app([*routes, Route("/fail", fail), Route("/api/fail", fail)], access)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_server(app(Access(max_body=1000))) as running:
        yield running


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningServer]:
    with run_server(app(Access(tokens={TOKEN: "owner", "of-ann": "ann"}))) as running:
        yield running


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_own_names_are_served(server: RunningServer, host: str) -> None:
    assert server.ask("/", headers={"Host": f"{host}:{server.port}"}).status == 200
    assert server.ask("/", headers={"Host": f"{host}:9000"}).status == 200  # A tunnel from another port.


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "", "localhost@evil.example"),
        *("evil.example:80@localhost", "localhost/evil", "localhost:x", "localhost#", "[::1", "metrist"),
    ],
)
def test_other_hosts_are_refused(server: RunningServer, host: str) -> None:
    answer = server.ask("/", headers={"Host": host})
    assert answer.status == 421
    assert "user" not in answer.text


def test_requests_without_a_host_or_with_two_are_refused(server: RunningServer) -> None:
    for lines in (b"", b"Host: localhost\r\nHost: evil.example\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n" + lines + b"Connection: close\r\n\r\n")
            assert connection.recv(1000).split()[1] in (b"400", b"421")


@pytest.mark.parametrize(
    "origin", ["null", "http://evil.example", "http://localhost:1", "https://127.0.0.1.evil.example"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_origins_are_refused(server: RunningServer, origin: str, method: str) -> None:
    answer = server.ask("/api/echo", method=method, body=b"{}", headers={"Origin": origin})
    assert answer.status == 403
    assert "access-control-allow-origin" not in answer.headers


def test_a_change_needs_the_own_origin(server: RunningServer) -> None:
    assert server.ask("/api/echo", method="POST", body=b"{}").status == 403
    assert server.post("/api/echo", {}).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_pages_may_link_here_and_nothing_else(server: RunningServer, site: str) -> None:
    link = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert server.ask("/", headers=link).status == 200
    assert server.ask("/", headers={**link, "Sec-Fetch-Dest": "iframe"}).status == 403
    assert server.ask("/", headers={**link, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}).status == 403


def test_all_answers_have_security_headers(server: RunningServer) -> None:
    for path, status in [("/", 200), ("/nothing", 404), ("/static/base.css", 200), ("/fail", 500)]:
        answer = server.ask(path)
        assert answer.status == status
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "no-" in answer.headers["cache-control"]
        assert "server" not in answer.headers
    assert "content-security-policy" in server.ask("/", headers={"Host": "evil.example"}).headers


def test_large_bodies_are_refused(server: RunningServer) -> None:
    headers = {"Origin": server.url}
    assert server.ask("/api/echo", method="POST", body=b"x" * 1000, headers=headers).json()["length"] == 1000
    assert server.ask("/api/echo", method="POST", body=b"x" * 1001, headers=headers).status == 413


def test_large_bodies_of_unknown_length_are_refused(server: RunningServer) -> None:
    head = (
        "POST /api/echo HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(head.encode() + b"".join(b"100\r\n" + b"x" * 256 + b"\r\n" for _ in range(8)) + b"0\r\n\r\n")
        assert b" 413 " in connection.recv(1000)


@pytest.mark.parametrize(
    "path",
    [
        *("/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e/server.py", "/static//etc/passwd"),
        *("/static/%2fetc%2fpasswd", "/static/..\\server.py", "/static/base.css%00.js", "/static/", "/static/BASE.CSS"),
        *("/static/./base.css/../../__init__.py", "/../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/static/x"),
    ],
)
def test_no_path_leads_out_of_the_static_files(server: RunningServer, path: str) -> None:
    assert server.ask(path).status == 404


def test_static_files_may_be_installed_as_links(tmp_path: Path) -> None:
    package = tmp_path / "linked_pages" / "static"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (tmp_path / "page.css").write_text("body {}", encoding="utf-8")
    (package / "linked.css").symlink_to(tmp_path / "page.css")
    sys.path.insert(0, str(tmp_path))
    try:
        route = static_route("linked_pages")
    finally:
        sys.path.remove(str(tmp_path))
    files: Any = route.app
    assert files.lookup_path("linked.css")[1] is not None


def test_static_files_are_cached_by_their_content(server: RunningServer) -> None:
    first = server.ask("/static/page.js")
    assert first.headers["content-type"].startswith(("text/javascript", "application/javascript"))
    assert server.ask("/static/page.js", headers={"If-None-Match": first.headers["etag"]}).status == 304


def test_errors_are_pages_or_json_without_markup_from_their_texts(
    server: RunningServer, capfd: pytest.CaptureFixture[str]
) -> None:
    page = server.ask("/fail?kind=mendable")
    assert page.status == 400
    assert "&lt;b&gt;no\\x1b[31m such run&lt;/b&gt;" in page.text
    assert server.ask("/api/fail?kind=mendable").json()["error"].startswith("<b>no")
    assert server.ask("/api/fail?kind=missing").json() == {"error": "no such output"}
    fault = server.ask("/fail")
    assert fault.status == 500
    assert "secret" not in fault.text
    assert "ZeroDivisionError: secret detail" in capfd.readouterr().err
    assert server.ask("/", method="DELETE", headers={"Origin": server.url}).status == 405


def test_a_token_comes_once_in_the_url_and_then_in_a_cookie(guarded: RunningServer) -> None:
    assert guarded.ask("/").status == 401
    assert guarded.ask("/static/base.css").status == 401
    link = guarded.ask(f"/?q=a%20b&token={TOKEN}&page=2")
    assert link.status == 200
    assert "url=/?q=a+b&amp;page=2" in link.text
    assert TOKEN not in link.text
    cookie = link.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    answer = guarded.ask("/", headers={"Cookie": cookie.partition(";")[0]})
    assert answer.json()["user"] == "owner"
    other = guarded.ask("/?token=of-ann").headers["set-cookie"].partition(";")[0]
    assert guarded.ask("/", headers={"Cookie": other}).json()["user"] == "ann"


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", "%ff%fe", "%00", "a" * 10_000])
def test_wrong_tokens_are_refused(guarded: RunningServer, token: str) -> None:
    answer = guarded.ask(f"/?token={token}")
    assert answer.status == 403
    assert "set-cookie" not in answer.headers
    assert guarded.ask("/", headers={"Cookie": f"metrist_{guarded.port}={token}"}).status == 401
    assert guarded.ask("/api/echo", headers={"Authorization": f"Bearer {TOKEN}"}).status == 401


def test_a_change_does_not_take_its_token_from_the_url(guarded: RunningServer) -> None:
    assert guarded.post(f"/api/echo?token={TOKEN}", {}).status == 401


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example", "///evil.example", '/"><script>'])
def test_the_link_with_a_token_leads_nowhere_else(guarded: RunningServer, path: str) -> None:
    text = guarded.ask(f"{path}?token={TOKEN}").text
    target = text.partition("url=")[2].partition('"')[0]
    assert target.startswith("/")
    assert not target.startswith(("//", "/\\"))
    assert "<script" not in text


def test_other_addresses_need_a_token() -> None:
    assert grant_access("127.0.0.1").tokens == {}
    assert len(*grant_access("0.0.0.0").tokens) >= 32
    with pytest.raises(ValueError, match="token"):
        Access(host="0.0.0.0")


def test_a_server_for_other_machines_is_reached_by_addresses_and_names_of_its_own() -> None:
    access = Access(host="0.0.0.0", tokens={TOKEN: "owner"})
    allowed = ("10.1.2.3:8517", "[fe80::1]:80", socket.gethostname(), "localhost")
    assert [host for host in allowed if not access.allows_host(host)] == []
    assert not access.allows_host("evil.example")


def test_users_may_come_while_the_server_runs() -> None:
    users: dict[str, str] = {}
    access = Access(find_user=users.get)
    assert access.default_user is None
    assert access.identify("later") is None
    users["later"] = "ann"
    assert access.identify("later") == "ann"


def test_loopback_addresses() -> None:
    assert [host for host in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost") if not is_loopback(host)] == []
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "")))


def test_addresses_are_formatted_as_urls() -> None:
    assert format_address("127.0.0.1", 80, path="/play") == "http://127.0.0.1:80/play"
    assert format_address("::1", 80, "abc") == "http://[::1]:80/?token=abc"
    assert socket.gethostname() in format_address("0.0.0.0", 80)


def test_a_missing_extra_names_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed("metrist view")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setattr("metrist.web.find_spec", lambda name: None if name == "uvicorn" else object())
    with raises_code(MissingExtra, "missing_dependency", "metrist view", "metrist[web]"):
        check_installed("metrist view")
