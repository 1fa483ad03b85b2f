"""`esper watch`: see runs live in a browser, at a terminal, or as a picture."""

import secrets
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from esper.cli.common import RUNS, BadInput, VerbParser, find_run

if TYPE_CHECKING:
    from esper.karn.watch.runs import RunsFolder

LOOPBACK = "127.0.0.1"
PORTS = range(8377, 8397)
"""Of these the first free one is taken, by default."""
LARGEST_PORT = 65_535
_OWN_NAMES = (LOOPBACK, "localhost", "::1")
_EVERY_ADDRESS = ("0.0.0.0", "::")
_PICTURES = (".html", ".png")
_SUMMARY = """See runs as they are on disk: is it learning, is it healthy, what is it doing, why, at what cost, and
which seeds earned their keep. Nothing is ever written to a run."""


def run_watch(arguments: list[str]) -> int:
    """Serve the dashboard, or draw it once; returns the exit code."""
    parser = VerbParser("watch", _SUMMARY, "esper watch my-run", "directory")
    parser.add_argument("run", nargs="?", metavar="RUN", help="run to show first; by default the newest")
    host_help = "serve other machines, too; visitors then need the token that is printed (%(default)s)"
    parser.add_argument("--host", default=LOOPBACK, metavar="ADDRESS", help=host_help)
    parser.add_count("--port", f"by default the first free one from {PORTS[0]} on", least=0)
    shown = parser.add_mutually_exclusive_group()
    once_help = "draw it once, to a .html or .png file, and serve nothing"
    shown.add_argument("--once", type=Path, metavar="FILE", help=once_help)
    shown.add_argument("--terminal", action="store_true", help="learning and health, live, without a browser")
    parser.add_argument("--dark", action="store_true", help="with --once: on dark ground")
    chosen = parser.parse(arguments)
    if chosen.dark and chosen.once is None:
        raise BadInput("--dark goes with --once; the page has a button, and follows the browser")
    if chosen.port is not None and chosen.port > LARGEST_PORT:
        raise BadInput(f"--port is {chosen.port}; expected at most {LARGEST_PORT}")
    directory, name = chosen.directory, None
    if chosen.run is not None:
        path = find_run(chosen.run, directory).resolve()
        directory, name = path.parent, path.name
    elif not directory.is_dir() and directory != RUNS:  # which a first training makes
        raise BadInput(f"--directory is {str(directory)!r}, and there is no such folder")
    from esper.karn.watch.runs import RunsFolder

    folder = RunsFolder(directory)
    if chosen.once is not None:
        _draw_once(folder, name, chosen.once, dark=chosen.dark)
    elif chosen.terminal:
        from esper.karn.watch.terminal import follow

        follow(folder, name or _newest(folder))
    else:
        _serve(folder, name, chosen.host, chosen.port)
    return 0


def _newest(folder: "RunsFolder") -> str:
    names = folder.names()
    if not names:
        raise BadInput(f"there is no run in {folder.root}; `esper train --preset demo` makes one")
    return names[0]


def _draw_once(folder: "RunsFolder", name: str | None, file: Path, *, dark: bool) -> None:
    if file.suffix not in _PICTURES:
        raise BadInput(f"--once is {str(file)!r}; expected a name that ends in {' or '.join(_PICTURES)}")
    if not file.parent.is_dir():
        raise BadInput(f"--once is {str(file)!r}; there is no folder {str(file.parent)!r}")
    _require("plotly")
    from esper.karn.watch.sheet import draw

    try:
        draw(folder, name or _newest(folder), file, theme="dark" if dark else "light")
    except OSError as error:
        raise BadInput(str(error)) from None
    print(file)


def _serve(folder: "RunsFolder", name: str | None, host: str, wanted: int | None) -> None:
    _require("nicegui", "plotly")
    port = _free_port(host, wanted)
    token = None if host in _OWN_NAMES else secrets.token_urlsafe(24)
    # Every address of this machine is none that a browser could open; the machine's name is.
    shown = socket.gethostname() if host in _EVERY_ADDRESS else f"[{host}]" if ":" in host else host
    query = "" if token is None else f"?token={token}"
    print(f"watching {folder.root} at http://{shown}:{port}/{query}", flush=True)
    if token is not None:
        warning = "anyone with this address can look; it is not printed again, and nothing is encrypted"
        print(warning, flush=True)
    from esper.karn.watch.server import serve

    try:
        serve(folder, run=name, host=host, port=port, token=token)
    except KeyboardInterrupt:  # how it is meant to end
        print("stopped watching")


def _require(*packages: str) -> None:
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        from esper.leyline.errors import install

        raise BadInput(f"esper watch needs {' and '.join(missing)}: {install('watch')}")


def _free_port(host: str, wanted: int | None) -> int:
    if wanted is not None and not 0 < wanted < 65536:
        raise BadInput(f"--port is {wanted}; expected 1 to 65535")
    tried = PORTS if wanted is None else (wanted,)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reason = ""
    for port in tried:
        try:
            with socket.create_server((host, port), family=family):
                return port
        except OSError as error:  # gaierror, too: a host that is no address of this machine
            reason = (error.strerror or str(error)).partition(" (while ")[0]
    place = f"port {tried[0]}" if len(tried) == 1 else f"ports {tried[0]} to {tried[-1]}"
    raise BadInput(f"cannot listen on {host}, {place}: {reason}; choose another with --host or --port")
