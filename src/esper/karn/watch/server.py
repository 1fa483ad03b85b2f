"""Serving the page to this machine, or to whoever has the token."""

from esper.karn.watch.folder import RunsFolder
from esper.karn.watch.guard import Guard
from esper.karn.watch.hub import Hub

MESSAGES_KEPT = 30
"""For a browser whose connection broke; figures are large, and it can always load the page again."""


RECONNECT_SECONDS = 15.0
"""That a browser may be away, or this machine too busy to answer, before the page is loaded anew."""


def serve(folder: RunsFolder, *, run: str | None, host: str, port: int, token: str | None) -> None:
    """Until somebody stops it.

    run    the run to show first; None is the one written last
    token  None only where `host` is this machine itself
    """
    from nicegui import app, ui
    from starlette.requests import Request

    from esper.karn.watch.page import WatchPage
    from esper.karn.watch.selection import Selection

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
