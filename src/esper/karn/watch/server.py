"""Serving the page: to this machine, or to visitors with the token."""

import hmac

from starlette.datastructures import Headers, QueryParams
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from esper.karn.watch.runs import Hub, RunsFolder, Selection

COOKIE = "esper_token"
MESSAGES_KEPT = 30
"""Messages kept for a browser whose connection broke; figures are large, and it can load the page again."""
RECONNECT_SECONDS = 15.0
"""Time a browser may be disconnected before the page is loaded again."""
HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        b"img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' ws: wss:; object-src 'none'; "
        b"base-uri 'self'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
"""The browser may load nothing from elsewhere. `unsafe-eval` is for NiceGUI, which makes code at run time."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})


class Guard:
    """An ASGI application in front of another, that checks every request and every socket before it is passed on.

    token  what a visitor must send, once in the address and then as a cookie; None serves this machine only, and only
           under its own names, so that a foreign page whose host name leads here is refused
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if not self._comes_from_our_page(headers):
            why = "this page can only be opened from its own address"
        elif self.token is None or self._has_cookie(headers):
            await self.app(scope, receive, _with_headers(send))
            return
        elif scope["type"] == "http" and self._has_token_in_address(scope):
            # The token moves from the address to a cookie.
            kept = {"cache-control": "no-store", "referrer-policy": "no-referrer"}
            admitted = RedirectResponse("/", status_code=303, headers=kept)
            admitted.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
            await admitted(scope, receive, send)
            return
        else:
            why = "open the address that esper watch printed: it carries a token"
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await PlainTextResponse(f"{why}\n", status_code=403)(scope, receive, send)

    def _comes_from_our_page(self, headers: Headers) -> bool:
        host = headers.get("host", "")
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return False
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return self.token is not None or name in LOOPBACK

    def _has_cookie(self, headers: Headers) -> bool:
        # Parsed by hand: cookies of other pages of this machine are sent too, and need not be well-formed.
        given = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        return any(name == COOKIE and self._is_token(value) for name, _, value in given)

    def _has_token_in_address(self, scope: Scope) -> bool:
        given = QueryParams(scope.get("query_string", b"")).getlist("token")
        return any(self._is_token(value) for value in given)

    def _is_token(self, value: str) -> bool:
        return self.token is not None and hmac.compare_digest(value.encode(), self.token.encode())


def _with_headers(send: Send) -> Send:
    async def send_more(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *HEADERS]
        await send(message)

    return send_more


def serve(folder: RunsFolder, *, run: str | None, host: str, port: int, token: str | None) -> None:
    """Serve the page until the process is stopped.

    run    the run to show first; None is the one written last
    token  None only if `host` is this machine itself
    """
    from nicegui import app, ui
    from starlette.requests import Request

    from esper.karn.watch.page import WatchPage

    hub = Hub(folder)

    def page(request: Request) -> None:
        query = request.query_params
        selection = Selection.of(query, query.getlist("beside"))
        selection.run = selection.run or run
        WatchPage(hub, selection).build()

    app.add_middleware(Guard, token=token)
    ui.page("/", title="Esper", favicon="🌱")(page)
    ui.run(
        host=host,
        port=port,
        reload=False,
        show=False,
        show_welcome_message=False,
        tailwind=False,
        binding_refresh_interval=None,
        message_history_length=MESSAGES_KEPT,
        reconnect_timeout=RECONNECT_SECONDS,
        uvicorn_logging_level="error",
        ws_per_message_deflate=False,  # it would cost half of what a look costs
    )
