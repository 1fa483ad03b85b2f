"""The error that a person can mend, and what pydantic found wrong as one line of its message."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

_LONGEST = 80


class EsperError(Exception):
    """Something that was asked for cannot be done. The message names the setting, its value and what was expected.

    Errors that a caller can mend derive from it (`ConfigError`, `RunError`, `ControllerError`, ...), and the `esper`
    command prints them in one line; any other exception is a defect and keeps its traceback.
    """


def install(extra: str) -> str:
    """The command that adds an extra where Esper is installed, from a checkout or a wheel."""
    return f"pip install 'esper-grow[{extra}]'"


def nearest(name: object, known: Iterable[str]) -> str:
    """ "; did you mean 'gamma'?" if something known is spelled like it, else nothing."""
    close = get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def first_finding(error: "ValidationError") -> str:
    """Where and what the first finding is, and the value, unless that is a whole document."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or "the whole"
    found = repr(first["input"])
    shown = f", found {found}" if first["type"] != "missing" and len(found) <= _LONGEST else ""
    return f"{where}: {first['msg']}{shown}"
