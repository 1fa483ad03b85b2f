"""Who gets in: this machine by its own names, or whoever brings the token; nobody else, by page or by socket."""

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from esper.karn.watch.server import COOKIE, Guard

TOKEN = "open-sesame"


async def inner(scope: Scope, _receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"inside"})


def ask(token: str | None, *, kind: str = "http", query: str = "", **headers: str) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {}

    scope: Scope = {
        "type": kind,
        "path": "/",
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    asyncio.run(Guard(inner, token)(scope, receive, send))
    return sent


def got_in(sent: list[Message]) -> bool:
    return sent[0].get("status") == 200 or sent[0]["type"] == "websocket.accept"


@pytest.mark.parametrize("host", ["localhost:8377", "127.0.0.1:8377", "[::1]:8377", "localhost"])
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_this_machine_by_its_own_names(host: str, kind: str) -> None:
    assert got_in(ask(None, kind=kind, host=host))
    assert got_in(ask(None, kind=kind, host=host, origin=f"http://{host}"))


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_a_foreign_page_is_turned_away(kind: str) -> None:
    assert not got_in(ask(None, kind=kind, host="evil.example"))  # a name that was given our address
    assert not got_in(ask(None, kind=kind, host="localhost:8377", origin="http://evil.example"))
    assert not got_in(ask(None, kind=kind, host="localhost:8377", origin="http://localhost:9999"))
    assert not got_in(ask(None, kind=kind, host="localhost:8377", origin="null"))
    assert not got_in(ask(None, kind=kind))


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_without_the_token_nobody_gets_in(kind: str) -> None:
    host = "10.0.0.5:8377"
    assert not got_in(ask(TOKEN, kind=kind, host=host))
    assert not got_in(ask(TOKEN, kind=kind, host=host, cookie=f"{COOKIE}=wrong"))
    assert not got_in(ask(TOKEN, kind=kind, host=host, cookie=f"{COOKIE}="))
    assert not got_in(ask(TOKEN, kind=kind, host=host, cookie='"; \x01=='))
    assert not got_in(ask(TOKEN, kind=kind, host=host, query="token=wrong"))
    assert not got_in(
        ask(TOKEN, kind=kind, host="localhost:8377")
    )  # other users of this machine need it, too
    assert got_in(ask(TOKEN, kind=kind, host=host, cookie=f"other=1; {COOKIE}={TOKEN}"))


def test_the_token_leaves_the_address() -> None:
    (start, _) = ask(TOKEN, host="10.0.0.5:8377", query=f"token={TOKEN}&run=x")
    headers = dict(start["headers"])
    assert start["status"] == 303
    assert headers[b"location"] == b"/"
    cookie = set(headers[b"set-cookie"].decode().split("; "))
    assert cookie == {f"{COOKIE}={TOKEN}", "HttpOnly", "SameSite=strict", "Path=/"}
    assert not got_in(ask(TOKEN, kind="websocket", host="10.0.0.5:8377", query=f"token={TOKEN}"))


def test_the_browser_is_told_to_load_nothing_from_elsewhere() -> None:
    headers = dict(ask(None, host="localhost")[0]["headers"])
    assert b"default-src 'self'" in headers[b"content-security-policy"]
    assert b"http" not in headers[b"content-security-policy"]


def test_the_cookies_of_other_pages_keep_nobody_out() -> None:
    """All pages of a machine share their cookies, whatever their port."""
    others = 'settings={"a": [1, 2]}; x y=1; =; ü'
    assert got_in(ask(TOKEN, host="10.0.0.5:8377", cookie=f"{others}; {COOKIE}={TOKEN}; {others}"))
    assert not got_in(ask(TOKEN, host="10.0.0.5:8377", cookie=f"not_{COOKIE}={TOKEN}; {others}"))


@pytest.mark.parametrize(
    "origin", ["http://[", "//localhost:8377", "localhost:8377", "http://localhost:8377/"]
)
def test_an_origin_that_is_none_is_refused(origin: str) -> None:
    (start, _) = ask(None, host="localhost:8377", origin=origin)
    assert start["status"] == 403
