"""`esper watch`: see runs live in a browser, at a terminal, or as a picture."""

import secrets
import socket
from importlib.util import find_spec
from pathlib import Path

from esper.cli.common import BadInput, VerbParser, find_run

LOOPBACK = "127.0.0.1"
PORT = 8377
_TRIED = 20
"""Ports from the default on, of which the first free one is taken."""
_OWN_NAMES = (LOOPBACK, "localhost", "::1")
_EVERY_ADDRESS = ("0.0.0.0", "::")
_PICTURES = (".html", ".png")


def run(arguments: list[str]) -> int:
    parser = VerbParser(
        "watch",
        "See runs as they are on disk: is it learning, is it healthy, what is it doing, why, at what cost, and\n"
        "which seeds earned their keep. Nothing is ever written to a run.",
        "esper watch my-run",
    )
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="what to show first; by default the run written last"
    )
    parser.add_directory()
    parser.add_argument(
        "--host",
        default=LOOPBACK,
        metavar="ADDRESS",
        help="serve other machines, too; visitors then need the token that is printed (%(default)s)",
    )
    parser.add_argument("--port", type=int, metavar="N", help=f"by default the first free one from {PORT} on")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--once", type=Path, metavar="FILE", help="draw it once, to a .html or .png file, and serve nothing"
    )
    shown.add_argument("--terminal", action="store_true", help="learning and health, live, without a browser")
    parser.add_argument("--dark", action="store_true", help="with --once: on dark ground")
    chosen = parser.parse_args(arguments)
    if chosen.dark and chosen.once is None:
        raise BadInput("--dark goes with --once; the page has a button, and follows the browser")
    folder, name = _where(chosen.run, chosen.directory)
    if chosen.once is not None:
        return _draw_once(folder, name, chosen.once, dark=chosen.dark)
    if chosen.terminal:
        return _follow(folder, name)
    return _serve(folder, name, chosen.host, chosen.port)


def _where(given: str | None, directory: Path) -> tuple[Path, str | None]:
    """The folder of the runs, and the name of one in it."""
    if given is None:
        return directory, None
    path = find_run(given, directory).resolve()
    return path.parent, path.name


def _newest(folder: Path, name: str | None) -> str:
    from esper.karn.watch.runs import RunsFolder

    if name is not None:
        return name
    names = RunsFolder(folder).names()
    if not names:
        raise BadInput(f"there is no run in {folder}; `esper train --preset demo` makes one")
    return names[0]


def _draw_once(folder: Path, name: str | None, file: Path, *, dark: bool) -> int:
    if file.suffix not in _PICTURES:
        raise BadInput(f"--once is {str(file)!r}; expected a name that ends in {' or '.join(_PICTURES)}")
    if not file.parent.is_dir():
        raise BadInput(f"--once is {str(file)!r}; there is no folder {str(file.parent)!r}")
    _require("plotly")
    from esper.karn.watch.once import CannotDraw, draw
    from esper.karn.watch.runs import RunsFolder

    try:
        draw(RunsFolder(folder), _newest(folder, name), file, theme="dark" if dark else "light")
    except (CannotDraw, OSError) as error:
        raise BadInput(str(error)) from None
    print(file)
    return 0


def _follow(folder: Path, name: str | None) -> int:
    from esper.karn.watch.runs import RunsFolder
    from esper.karn.watch.terminal import follow

    follow(RunsFolder(folder), _newest(folder, name))
    return 0


def _serve(folder: Path, name: str | None, host: str, port: int | None) -> int:
    _require("nicegui", "plotly")
    free = _free_port(host, port)
    local = host in _OWN_NAMES
    token = None if local else secrets.token_urlsafe(24)
    print(
        f"watching {folder} at http://{_shown(host)}:{free}/" + ("" if token is None else f"?token={token}"),
        flush=True,
    )
    if token is not None:
        print(
            "whoever has this address can look; it is not printed again, and what travels is not encrypted",
            flush=True,
        )
    from esper.karn.watch.runs import RunsFolder
    from esper.karn.watch.server import serve

    serve(RunsFolder(folder), run=name, host=host, port=free, token=token)
    return 0


def _shown(host: str) -> str:
    """As others write it: every address of this machine is none that a browser could open, its name is."""
    if host in _EVERY_ADDRESS:
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _require(*packages: str) -> None:
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise BadInput(f"esper watch needs {' and '.join(missing)}: pip install 'esper[watch]'")


def _free_port(host: str, wanted: int | None) -> int:
    if wanted is not None and not 0 < wanted < 65536:
        raise BadInput(f"port is {wanted}; expected 1 to 65535")
    tried = range(PORT, PORT + _TRIED) if wanted is None else (wanted,)
    reason = "nothing was tried"
    for port in tried:
        try:
            with socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
            ):
                return port
        except OSError as error:  # gaierror, too: a host that is no address of this machine
            reason = (error.strerror or str(error)).partition(" (while ")[0]
    place = f"port {tried[0]}" if len(tried) == 1 else f"ports {tried[0]} to {tried[-1]}"
    raise BadInput(f"cannot listen on {host}, {place}: {reason}; choose another with --host or --port")
