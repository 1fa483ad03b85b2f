"""How a verb ends when something is not right."""

from collections.abc import Iterable

BAD_INPUT = 2
INTERRUPTED = 130


class BadInput(Exception):
    """What was asked for cannot be done; the message is for the person who asked, in one line."""


def did_you_mean(given: str, known: Iterable[str], otherwise: str) -> str:
    """A hint: what is spelled most like it, or something else to try."""
    from difflib import get_close_matches

    close = get_close_matches(given, list(known), n=1)
    return f"did you mean {close[0]}?" if close else otherwise
